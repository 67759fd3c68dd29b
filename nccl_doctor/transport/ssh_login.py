"""From an open line to a logged-in connection: algorithms, key exchange, host key, keys. For one host at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import paramiko

from nccl_doctor.facts.model import UNSIGNED, ReachOutcome
from nccl_doctor.transport.auth_gate import AuthGate
from nccl_doctor.transport.base import Deadline, Unreachable
from nccl_doctor.transport.known_hosts import KnownHostsCache, fingerprint, judge
from nccl_doctor.transport.process import ProxyProcess
from nccl_doctor.transport.ssh_config import HostConfig
from nccl_doctor.transport.ssh_errors import (
    Connection,
    NeedsProgram,
    changed_key,
    login_command,
    text_of,
    trouble,
)
from nccl_doctor.transport.ssh_keys import NOT_SIGNED, Candidate, KeyRing, Signer

_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_KEY_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class LogIn:
    """What logging in to the hosts of a run shares: known hosts, keys, the gate against locked accounts."""

    def __init__(self, gate: AuthGate) -> None:
        self._known = KnownHostsCache()
        self._keys = KeyRing()
        self._gate = gate

    def connect(self, line: Any, config: HostConfig, limit_s: float, deadline: Deadline) -> tuple[Connection, str]:
        """A logged-in connection over ``line`` (a socket or a channel) and a note.

        ``limit_s`` is for all of it but the wait at the gate. Raises :class:`Unreachable`, :class:`NeedsProgram`, and
        ``ConnectionError`` where the line was closed before it began.
        """
        end = time.monotonic() + limit_s
        try:
            client = Connection(line)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionError(text_of(error)) from error
        try:
            self._choose_algorithms(client, config)
            _exchange_keys(client, config, limit_s)
            note = self._check_host_key(client, config)
            self._pass_gate(client, config, max(1.0, end - time.monotonic()), deadline)
        except BaseException as error:
            client.close()
            line.close()
            if isinstance(error, OSError | EOFError | paramiko.SSHException):
                detail = "the connection broke during the login"
                raise trouble(client, config, ReachOutcome.CUT_OFF, detail, text_of(error)) from error
            raise
        return client, note

    def _choose_algorithms(self, client: Connection, config: HostConfig) -> None:
        """What the config allows and paramiko can: cheap ciphers first, host-key types that are known first."""
        options: Any = client.get_security_options()
        options.kex = _allowed("kexalgorithms", config, options.kex)
        options.ciphers = tuple(sorted(_allowed("ciphers", config, options.ciphers), key=_cipher_cost))
        options.digests = _allowed("macs", config, options.digests)
        types = _allowed("hostkeyalgorithms", config, options.key_types)
        known = self._known.get(config.known_hosts_files).find(*config.vouched)
        plain = [key.kind for key in known if not key.marker]
        if any(key.marker == "@cert-authority" for key in known):
            raise NeedsProgram("known_hosts vouches for this host by a certificate authority")
        wanted = [name for kind in plain for name in _KEY_ALGORITHMS.get(kind, (kind,)) if name in types]
        if plain and not wanted:
            raise NeedsProgram(f"known_hosts has only keys of kind {', '.join(sorted(set(plain)))}")
        options.key_types = tuple(dict.fromkeys([*wanted, *types]))

    def _check_host_key(self, client: Connection, config: HostConfig) -> str:
        """Refuse a changed key always and an unknown one unless the config accepts it; returns a note."""
        key = client.get_remote_server_key()
        name = config.vouched[0]
        verdict = judge(self._known.get(config.known_hosts_files), *config.vouched, key.asbytes())
        if verdict.result == "ok":
            return ""
        shown = f"shown: {key.get_name()} {fingerprint(key.asbytes())}"
        if verdict.result != "unknown":
            raise changed_key(client, config, name, shown, verdict)
        if config.strict_host_keys in ("no", "accept-new"):
            return f"unknown host key accepted, not recorded (StrictHostKeyChecking {config.strict_host_keys})"
        if config.one("verifyhostkeydns", "no") in ("yes", "true"):
            raise NeedsProgram("the ssh config looks for host keys in DNS (VerifyHostKeyDNS)")
        files = ", ".join(config.known_hosts_files)
        detail = (
            f"the host key of {name} is in no known_hosts file; compare it and log in once: {login_command(config)}"
        )
        raise trouble(client, config, ReachOutcome.HOST_KEY_UNKNOWN, detail, shown, f"looked in: {files}")

    def _pass_gate(self, client: Connection, config: HostConfig, limit_s: float, deadline: Deadline) -> None:
        self._gate.enter(config.user, deadline)
        end = time.monotonic() + limit_s
        outcome = ReachOutcome.TRANSPORT_FAILED
        try:
            self._offer_keys(client, config, end)
            outcome = ReachOutcome.OK
        except Unreachable as found:
            outcome = found.reach.outcome
            raise
        finally:
            self._gate.leave(config.user, config.destination, outcome)

    def _offer_keys(self, client: Connection, config: HostConfig, end: float) -> None:
        candidates, notes = self._keys.candidates(config)
        refused: list[str] = []
        further: list[str] = []
        for candidate in candidates:
            signer = Signer(candidate.key)
            client.auth_timeout = max(0.1, end - time.monotonic())
            try:
                further = _offer(client, config.user, signer)
            except paramiko.BadAuthenticationType as error:
                further = list(error.allowed_types)
                break
            except (paramiko.SSHException, OSError, EOFError) as error:
                _weigh(client, config, error, refused)
                refused.append(f"{signer.trouble or 'refused'}: {candidate.described}")
                if not client.is_active():
                    break
                continue
            if not further:
                self._keys.accepted(config, candidate)
                return
            refused.append(f"accepted, but not enough: {candidate.described}")
            break
        methods = further or _methods(client, config.user)
        if not client.is_authenticated():  # some servers ask for no proof at all
            raise _refusal(client, config, candidates, refused, methods, notes)


def _offer(client: Connection, user: str, key: Any) -> list[str]:
    """Offer one key; what the server asks for besides. Raises what paramiko does, without its polling."""
    decided = threading.Event()
    client.auth_publickey(user, key, event=decided)
    if not decided.wait(client.auth_timeout):
        raise paramiko.AuthenticationException("Authentication timeout.")
    if client.is_authenticated():
        return []
    error = client.get_exception()
    if isinstance(error, paramiko.ssh_exception.PartialAuthentication):
        return list(error.allowed_types)
    raise error if isinstance(error, paramiko.SSHException | OSError | EOFError) else paramiko.AuthenticationException()


def _weigh(client: Connection, config: HostConfig, error: Exception, refused: list[str]) -> None:
    """Tell a refused key, which is no error here, from a broken connection."""
    if "timeout" in str(error).lower():
        detail = "connected, but the login was not answered in time"
        raise trouble(client, config, ReachOutcome.TIMED_OUT, detail, text_of(error)) from error
    if not client.is_active() and not refused:
        detail = "sshd closed the connection during the login"
        raise trouble(client, config, ReachOutcome.CUT_OFF, detail, text_of(error)) from error


def _refusal(
    client: Connection,
    config: HostConfig,
    candidates: list[Candidate],
    refused: list[str],
    methods: list[str],
    notes: list[str],
) -> Unreachable:
    """Why nobody was let in, with every key that was tried."""
    if _kerberos(config, methods):
        raise NeedsProgram("the server offers Kerberos (GSSAPI) and there is a ticket")
    if "hostbased" in methods and config.one("hostbasedauthentication") == "yes":
        raise NeedsProgram("the server and the ssh config offer host-based authentication")
    if not candidates:
        why = "there is no usable key, neither in an agent nor in a file"
    elif any(text.startswith("accepted") for text in refused):
        why = f"the key was accepted, but the server also asks for {', '.join(methods)}"
    elif refused and all(text.startswith(NOT_SIGNED) for text in refused):
        why = UNSIGNED
    elif not refused:
        why = f"the server takes no keys, only {', '.join(methods)}"
    else:
        why = f"none of {len(refused)} keys is accepted" if len(refused) > 1 else "the key is not accepted"
    detail = f"login as {config.user} refused: {why}; try: {login_command(config)}"
    offered = [f"the server accepts: {', '.join(methods)}"] if methods else []
    looked = [] if candidates or notes else [f"looked for: {', '.join(config.identity_files)}"]
    return trouble(client, config, ReachOutcome.AUTH_FAILED, detail, *refused, *notes, *looked, *offered)


def _methods(client: Connection, user: str) -> list[str]:
    """What the server would accept; asked only when the keys failed."""
    if not client.is_active():
        return []
    try:
        client.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, OSError, EOFError):
        return []
    return []


def _kerberos(config: HostConfig, methods: list[str]) -> bool:
    return "gssapi-with-mic" in methods and config.one("gssapiauthentication") == "yes" and _has_ticket()


@functools.cache
def _has_ticket() -> bool:
    """Whether there may be a Kerberos ticket: klist knows the caches that are no file (KCM, the kernel's keyring)."""
    if os.environ.get("KRB5CCNAME") or Path(f"/tmp/krb5cc_{os.getuid()}").exists():
        return True
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["klist", "-s"], capture_output=True, timeout=5, check=False).returncode == 0
    return False


def _cipher_cost(name: str) -> int:
    return _FAST_CIPHERS.index(name) if name in _FAST_CIPHERS else len(_FAST_CIPHERS)


def _allowed(keyword: str, config: HostConfig, able: tuple[str, ...]) -> tuple[str, ...]:
    """Algorithms that the config allows and paramiko has, in the config's order."""
    wanted = config.names(keyword)
    if not wanted:
        return tuple(able)
    chosen = tuple(name for name in wanted if name in able)
    if not chosen:
        raise NeedsProgram(f"{keyword} of the ssh config: paramiko has none of {', '.join(wanted[:4])}")
    return chosen


def expect_banner(line: Any, config: HostConfig, limit_s: float) -> None:
    """Look at the server's first bytes without taking them: is this an sshd at all?

    ``line`` is a socket, or a ProxyCommand's. Raises :class:`Unreachable`, or ``OSError`` where it was closed at once,
    which is worth another try.
    """
    proxy = isinstance(line, ProxyProcess)
    address, port = (config.hostname, config.port) if proxy else line.getpeername()[:2]
    line.settimeout(limit_s)
    try:
        first = line.recv(256, socket.MSG_PEEK)
    except TimeoutError:
        line.close()
        open_way = "the ProxyCommand runs" if proxy else "the port accepts connections"
        detail = f"{open_way}, but no SSH banner came within {limit_s:.1f} s (sshd hung or overloaded)"
        silent = f"connect {address} port {port}: open, silent"
        raise Unreachable(ReachOutcome.TIMED_OUT, detail, silent, address=address, port=port) from None
    if not first:
        raise ConnectionResetError("closed without a word")
    if b"SSH-" in first or b"SSH-".startswith(first):
        return
    text = first.decode("utf-8", "backslashreplace").strip()
    if "MaxStartups" in text or "Not allowed at this time" in text:
        raise ConnectionResetError(text)
    line.close()
    shown = "first bytes: " + "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)[:200]
    raise Unreachable(ReachOutcome.GARBAGE, f"port {port} is no sshd", shown, address=address, port=port)


def _exchange_keys(client: Connection, config: HostConfig, limit_s: float) -> None:
    client.banner_timeout = client.handshake_timeout = limit_s
    done = threading.Event()
    client.start_client(event=done)
    done.wait(limit_s)
    if client.is_active() and client.initial_kex_done:
        return
    error = client.get_exception()
    if not done.is_set() or "timeout" in str(error).lower():
        what = "key exchange" if client.remote_version else "SSH banner"
        detail = f"sshd did not finish its {what} within {limit_s:.1f} s"
        raise trouble(client, config, ReachOutcome.TIMED_OUT, detail, text_of(error) or "no answer")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        raise NeedsProgram(f"no algorithm in common with paramiko ({error})")
    if "Indecipherable" in str(error):
        raise trouble(client, config, ReachOutcome.GARBAGE, f"port {config.port} is no sshd", text_of(error))
    detail = "the connection was closed during the key exchange"
    raise trouble(client, config, ReachOutcome.CUT_OFF, detail, text_of(error) or "closed by the server")
