"""known_hosts, read once and only read: which keys a host may show, and whether the one it showed is among them."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec


class KnownKey(msgspec.Struct, frozen=True):
    """One line: the key, its marker (``@revoked``, ``@cert-authority`` or empty), and where it stands."""

    kind: str
    blob: bytes
    marker: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """The file and line, for a message."""
        return f"{self.file}:{self.line}"


def fingerprint(blob: bytes) -> str:
    """A public key's fingerprint as ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def written_name(host: str, port: int) -> str:
    """The host as known_hosts writes it: ``[host]:port`` where the port is not 22."""
    name = host.lower()
    return name if port == 22 else f"[{name}]:{port}"


class KnownHosts:
    """The entries of some known_hosts files, indexed: plain names by name, hashed ones tried with one HMAC each."""

    def __init__(self, files: Iterable[str]) -> None:
        self._found: dict[str, list[KnownKey]] = {}  # 3,000 hashed entries cost 4 ms, and a host is looked up twice
        self._plain: dict[str, list[KnownKey]] = {}
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []
        self._patterns: list[tuple[tuple[str, ...], KnownKey]] = []
        for name in files:
            try:
                text = Path(name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # absent, or not for us to read: then it vouches for nobody
            for number, line in enumerate(text.splitlines(), 1):
                self._add(line, name, number)

    def _add(self, line: str, file: str, number: int) -> None:
        words = line.split()
        if not words or words[0].startswith("#"):
            return
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3:
            return
        try:
            key = KnownKey(words[1], base64.b64decode(words[2], validate=True), marker, file, number)
        except ValueError:
            return
        if words[0].startswith("|1|"):
            self._add_hashed(words[0], key)
            return
        patterns = tuple(words[0].lower().split(","))
        if any(char in words[0] for char in "*?!"):
            self._patterns.append((patterns, key))
        else:
            for name in patterns:
                self._plain.setdefault(name, []).append(key)

    def _add_hashed(self, word: str, key: KnownKey) -> None:
        salt, _, digest = word[3:].partition("|")
        try:
            self._hashed.append((base64.b64decode(salt), base64.b64decode(digest), key))
        except ValueError:
            return

    def find(self, host: str, port: int) -> list[KnownKey]:
        """All entries for a host (name or HostKeyAlias) at a port, markers included."""
        name = written_name(host, port)
        if name not in self._found:
            self._found[name] = self._search(name)
        return self._found[name]

    def _search(self, name: str) -> list[KnownKey]:
        found = list(self._plain.get(name, ()))
        data = name.encode("utf-8")
        found += [key for salt, digest, key in self._hashed if hmac.digest(salt, data, "sha1") == digest]
        found += [key for patterns, key in self._patterns if matches(patterns, name)]
        return found


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a name matches ssh's patterns, letter by letter: one at least, and none that begins with ``!``."""
    hit = False
    for pattern in patterns:
        wanted = pattern.lstrip("!").replace("[", "[[]")  # ssh knows * and ? only
        if fnmatch.fnmatchcase(name, wanted):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit


class Verdict(msgspec.Struct, frozen=True):
    """What known_hosts says of a key that a host showed: ``ok``, ``unknown``, ``changed`` or ``revoked``."""

    result: str
    expected: tuple[KnownKey, ...] = ()


def judge(known: KnownHosts, host: str, port: int, blob: bytes) -> Verdict:
    """Compare a shown key with what is known of the host.

    Stricter than ssh in one point: a host that is known only by keys of another type counts as changed, not as new.
    """
    entries = known.find(host, port)
    revoked = tuple(key for key in entries if key.marker == "@revoked" and key.blob == blob)
    if revoked:
        return Verdict("revoked", revoked)
    plain = tuple(key for key in entries if not key.marker)
    if any(key.blob == blob for key in plain):
        return Verdict("ok")
    if plain:
        return Verdict("changed", plain)
    if port != 22 and judge(known, host, 22, blob).result == "ok":  # as ssh does: known for the host without a port
        return Verdict("ok")
    return Verdict("unknown")


class KnownHostsCache:
    """Reads each set of files once per run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[tuple[str, ...], KnownHosts] = {}

    def get(self, files: tuple[str, ...]) -> KnownHosts:
        """The entries of these files."""
        with self._lock:
            if files not in self._read:
                self._read[files] = KnownHosts(files)
            return self._read[files]
