"""The user's keys: from the agent and from files, each read once, in the order in which ssh would offer them."""

from __future__ import annotations

import base64
import copy
import os
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import msgspec
import paramiko
import paramiko.agent
import paramiko.pkey
from cryptography.exceptions import UnsupportedAlgorithm

from nccl_doctor.transport.known_hosts import fingerprint
from nccl_doctor.transport.ssh_config import HostConfig

MOST_TRIES = 6  # sshd's MaxAuthTries


class Candidate(msgspec.Struct, frozen=True):
    """A key that may be offered, and what to call it in a message."""

    key: paramiko.PKey
    name: str

    @property
    def described(self) -> str:
        """Kind, fingerprint and where it came from: nothing secret."""
        return f"{self.key.get_name()} {fingerprint(self.key.asbytes())} {self.name}"


NOT_SIGNED = "not signed by the agent"


class Signer:
    """A key as it is offered to one host; ``trouble`` says why it did not sign.

    paramiko would end the connection then, where ssh goes on to the next key: a signature that no server takes has it
    go on, too.
    """

    def __init__(self, key: paramiko.PKey) -> None:
        self._key = key
        self.trouble = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
        """The signature, or an empty one."""
        try:
            return self._key.sign_ssh_data(data, algorithm)
        except (OSError, paramiko.SSHException) as error:
            self.trouble = f"{NOT_SIGNED} ({error})"
            return b""


class _Agent(paramiko.agent.AgentSSH):
    """The agent behind one socket; its single connection is shared by all threads, one request at a time."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._turn = threading.RLock()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(10.0)
        connection.connect(path)
        self._connect(connection)  # type: ignore[attr-defined]  # paramiko's own way to use another socket

    def _send_message(self, message: object) -> object:
        with self._turn:
            try:
                return super()._send_message(message)  # type: ignore[misc]
            except OSError:  # what it says later must not be taken for the next answer
                self._conn.close()  # type: ignore[attr-defined]
                raise


class KeyRing:
    """All keys of a run; thread-safe. ``notes`` says which files could not be used, and why."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Candidate | str | None] = {}
        self._agents: dict[str, list[Candidate]] = {}
        self._worked: dict[str, bytes] = {}

    def candidates(self, config: HostConfig) -> tuple[list[Candidate], list[str]]:
        """The keys to offer, best first, and notes on files that are no use."""
        with self._lock:
            held = self._from_agent(config)
            read = [(name, self._from_file(name)) for name in config.identity_files]
        named = {blob for name, found in read if (blob := _public_blob(name, found))}
        only = config.one("identitiesonly", "no").lower() in ("yes", "true")
        notes = [found for _, found in read if isinstance(found, str)]
        ordered = [one for one in held if one.key.asbytes() in named]
        ordered += [] if only else [one for one in held if one.key.asbytes() not in named]
        blobs = {one.key.asbytes() for one in ordered}
        for _, found in read:
            if isinstance(found, Candidate) and found.key.asbytes() not in blobs:
                ordered += _with_and_without_certificate(found)
        worked = self._worked.get(config.user)
        ordered.sort(key=lambda one: one.key.asbytes() != worked)
        return ordered[:MOST_TRIES], notes

    def accepted(self, config: HostConfig, candidate: Candidate) -> None:
        """Remember which key a host took: it is offered first to the others."""
        self._worked[config.user] = candidate.key.asbytes()

    def _from_agent(self, config: HostConfig) -> list[Candidate]:
        setting = config.values.get("identityagent", ["SSH_AUTH_SOCK"])[0]
        if setting.lower() == "none":
            return []
        if setting == "SSH_AUTH_SOCK" or setting.startswith("$"):
            path = os.environ.get(setting.strip("${}"), "")
        else:
            path = config.expand(setting)
        if not path:
            return []
        if path not in self._agents:
            try:
                keys = _Agent(path).get_keys()
            except (OSError, paramiko.SSHException):
                keys = ()
            self._agents[path] = [Candidate(key, f"from the agent ({key.comment})") for key in keys]
        return self._agents[path]

    def _from_file(self, name: str) -> Candidate | str | None:
        if name not in self._files:
            self._files[name] = _load(name)
        return self._files[name]


def _load(name: str) -> Candidate | str | None:
    """A private key file: the key, a note on why it is no use, or None where there is no file."""
    try:
        if not Path(name).is_file():
            return None
        with warnings.catch_warnings():  # DSA keys are out of date: the note says what comes of it
            warnings.simplefilter("ignore")
            return Candidate(paramiko.PKey.from_path(name), f"from {name}")
    except paramiko.PasswordRequiredException:
        return _locked(name)
    except (TypeError, ValueError) as error:
        return (
            _locked(name) if "assw" in str(error) or "ncrypted" in str(error) else f"{name} is no key that can be read"
        )
    except paramiko.pkey.UnknownKeyType:
        return f"{name} is of a kind that only the ssh program knows"
    except (OSError, paramiko.SSHException, UnsupportedAlgorithm) as error:
        return f"{name} cannot be used: {error}"


def _with_and_without_certificate(found: Candidate) -> list[Candidate]:
    """paramiko gives a key the certificate beside it (NAME-cert.pub); ssh offers that first, and then the key alone."""
    if found.key.public_blob is None:
        return [found]
    alone = copy.copy(found.key)
    alone.public_blob = None
    return [Candidate(found.key, f"{found.name}, with its certificate"), Candidate(alone, found.name)]


def _locked(name: str) -> str:
    return f"{name} has a passphrase; put it into an agent: ssh-add {name}"


def _public_blob(name: str, found: Candidate | str | None) -> bytes:
    """The public part of an identity file: from the key, or from the .pub beside it (it may name an agent's key)."""
    if isinstance(found, Candidate):
        return found.key.asbytes()
    for path in (Path(name + ".pub"), Path(name)):
        try:
            words = path.read_text(encoding="utf-8", errors="replace").split()
            if len(words) > 1 and not words[0].startswith("-"):
                return base64.b64decode(words[1], validate=True)
        except (OSError, ValueError):
            continue
    return b""
