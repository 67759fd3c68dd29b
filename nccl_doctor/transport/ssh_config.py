"""The user's ssh config, as ssh itself reads it: ``ssh -G`` answers, so Include, Match and tokens mean what they mean.

One ``ssh -G`` costs about 7 ms. Hosts that match the same ``Host`` blocks get the same answer but for their name, so it
is asked once for each such class; as soon as the answer could depend on the name otherwise, each host is asked for.
"""

from __future__ import annotations

import functools
import glob
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nccl_doctor.facts.model import OURS, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import Unreachable
from nccl_doctor.transport.known_hosts import matches

SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_ASK_LIMIT_S = 10.0


@functools.cache
def home() -> Path:
    """The home directory of the password file, which is the one ssh uses; $HOME may say otherwise."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def login_name() -> str:
    """The user's name, as ssh has it: by the user id; $USER may name another (su without a dash)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        uid = f"user id {os.getuid()} is in no password file"
        raise Unreachable(ReachOutcome.TRANSPORT_FAILED, f"{OURS} has no name for its own user", uid) from None


class HostConfig(msgspec.Struct, frozen=True):
    """What ssh's config says about one destination. ``values`` are all answers of ``ssh -G``, by keyword."""

    destination: str
    hostname: str
    user: str
    port: int
    values: dict[str, list[str]] = {}
    known: bool = False  # from ``ssh -G``; otherwise there is no config and these are ssh's defaults

    def one(self, keyword: str, default: str = "") -> str:
        """The value of a keyword; ``none`` counts as not set."""
        found = self.values.get(keyword, [default])[0]
        return default if found.lower() == "none" else found

    def names(self, keyword: str) -> tuple[str, ...]:
        """A comma-separated list of algorithms; empty where the config leaves it open."""
        return tuple(name for name in self.one(keyword).split(",") if name)

    @property
    def vouched(self) -> tuple[str, int]:
        """The name and the port under which known_hosts vouches for the host: an alias stands there without a port."""
        alias = self.one("hostkeyalias")
        return (alias, 22) if alias else (self.hostname, self.port)

    @property
    def identity_files(self) -> tuple[str, ...]:
        """Private key files in ssh's order, expanded."""
        files = self.values.get("identityfile") or [
            f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk")
        ]
        return tuple(self.expand(name) for name in files if name.lower() != "none")

    @property
    def known_hosts_files(self) -> tuple[str, ...]:
        """The user's and the global known_hosts files, expanded."""
        user = self.values.get("userknownhostsfile", ["~/.ssh/known_hosts ~/.ssh/known_hosts2"])[0]
        system = self.values.get("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"])[0]
        return tuple(self.expand(name) for name in (*_words(user), *_words(system)) if name.lower() != "none")

    @property
    def strict_host_keys(self) -> str:
        """``yes``, ``ask``, ``accept-new`` or ``no``."""
        value = self.one("stricthostkeychecking", "ask").lower()
        return {"true": "yes", "false": "no", "off": "no"}.get(value, value)

    def expand(self, text: str) -> str:
        """``~``, ``${NAME}`` and percent tokens of a path, as ssh_config(5) has them."""
        text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), text)
        if "%" in text:
            tokens = self._tokens()
            text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
        return f"{home()}{text[1:]}" if text == "~" or text.startswith("~/") else text

    def _tokens(self) -> dict[str, str]:
        return {
            "%": "%",
            "d": str(home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "k": self.one("hostkeyalias", self.destination),
            "L": socket.gethostname().partition(".")[0],
            "l": socket.gethostname(),
            "n": self.destination,
            "p": str(self.port),
            "r": self.user,
            "u": login_name(),
        }


@functools.lru_cache(maxsize=1024)  # the same known_hosts line for every host of a class
def _words(text: str) -> tuple[str, ...]:
    """Words of a config line, which may be quoted."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


class _Patterns:
    """The ``Host`` patterns of all config files; ``each`` when the answer may depend on the name in other ways."""

    def __init__(self, files: list[Path], system: str) -> None:
        self.lists: list[tuple[str, ...]] = []
        self.each = False
        self._seen = 0
        for path in files:
            self._base = Path(system).parent if str(path) == system else home() / ".ssh"
            self._read(path, 0)

    def _read(self, path: Path, depth: int) -> None:
        self._seen += 1
        if depth > 16 or self._seen > 256:
            self.each = True
            return
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return  # ssh passes over what it may not read, too, or says why itself
        for keyword, value in _directives(text):
            if keyword == "host":
                words = _words(value)
                comment = (at for at, word in enumerate(words) if word.startswith("#"))
                self.lists.append(words[: next(comment, len(words))])
            elif keyword == "match" and value.lower().split() not in (["all"], ["final", "all"]):
                self.each = True
            elif keyword == "include":
                self._include(value, depth)
            elif keyword in ("canonicalizehostname", "knownhostscommand") and value.lower() != "no":
                self.each = True

    def _include(self, value: str, depth: int) -> None:
        for word in _words(value):
            if "%" in word or "$" in word:
                self.each = True
                continue
            word = f"{home()}{word[1:]}" if word.startswith("~/") else os.path.expanduser(word)  # noqa: PTH111 - ~user
            for name in sorted(glob.glob(str(self._base / word))):  # noqa: PTH207 - the pattern may be absolute
                self._read(Path(name), depth + 1)

    def matched(self, destination: str) -> tuple[bool, ...]:
        """Which of the lists the destination matches: equal answers mean equal configs."""
        return tuple(matches(patterns, destination) for patterns in self.lists)


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Keywords, in lower case, and what stands behind them."""
    for line in text.splitlines():
        found = re.match(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$", line)
        if found:
            yield found[1].lower(), found[2]


class ConfigReader:
    """Answers for all hosts of a run; thread-safe. ``file`` is for ``ssh -F``; empty: the user's and the system's."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._program = shutil.which("ssh")
        files = [Path(file)] if file else [home() / ".ssh" / "config", Path(SYSTEM_CONFIG)]
        self._files = [path for path in files if path.exists()]
        self._patterns = _Patterns(self._files, "" if file else SYSTEM_CONFIG)
        self._lock = threading.Lock()
        self._class_locks: dict[tuple[object, ...], threading.Lock] = {}
        self._answers: dict[tuple[object, ...], HostConfig | None] = {}

    def resolve(self, entry: HostEntry) -> HostConfig:
        """The config of a host; raises :class:`Unreachable` where ssh cannot read it."""
        destination = entry.address or entry.name
        if not self._files and not self._file:
            return HostConfig(destination, destination, entry.user or login_name(), entry.port or 22)
        if self._patterns.each:
            return self._ask(destination, entry)
        key = (self._patterns.matched(destination), entry.user, entry.port)
        with self._lock:
            class_lock = self._class_locks.setdefault(key, threading.Lock())
        with class_lock:
            if key not in self._answers:
                answer = self._ask(destination, entry)
                self._answers[key] = answer if _depends_only_on_name(answer) else None
                return answer
        common = self._answers[key]
        if common is None:
            return self._ask(destination, entry)
        return msgspec.structs.replace(common, destination=destination, hostname=destination)

    def _ask(self, destination: str, entry: HostEntry) -> HostConfig:
        if self._program is None:
            where = str(self._files[0]) if self._files else self._file
            detail = f"{OURS} lacks the ssh program, without which {where} cannot be obeyed"
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, "ssh: not found in PATH")
        argv = [self._program, *(["-F", self._file] if self._file else []), "-G"]
        argv += ["-l", entry.user] if entry.user else []
        argv += ["-p", str(entry.port)] if entry.port else []
        try:
            done = subprocess.run(
                [*argv, "--", destination],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ASK_LIMIT_S,
                text=True,
                errors="replace",
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            detail = f"{OURS}'s ssh -G did not answer within {_ASK_LIMIT_S:.0f} s: a Match exec in the ssh config hangs"
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, f"ssh -G {destination}") from error
        except OSError as error:
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, f"{OURS} cannot start ssh -G", str(error)) from error
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if line.strip()), f"exit status {done.returncode}")
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, f"{OURS}'s ssh cannot read its config", first)
        return _understand(destination, done.stdout)


def _understand(destination: str, answer: str) -> HostConfig:
    values: dict[str, list[str]] = {}
    for line in answer.splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword.lower(), []).append(value)
    hostname = values["hostname"][0]
    return HostConfig(destination, hostname, values["user"][0], int(values["port"][0]), values, known=True)


def _depends_only_on_name(config: HostConfig) -> bool:
    """Whether another host of the same class gets this answer with its own name put in for this one's."""
    name = config.destination.lower()
    if config.hostname.lower() != name or config.one("controlpath"):  # %C is a hash of the name
        return False
    others = (
        value for keyword, found in config.values.items() if keyword not in ("host", "hostname") for value in found
    )
    return not any(name in value.lower() for value in others)
