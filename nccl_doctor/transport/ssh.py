"""The ssh transport: paramiko, which costs a tenth of an ssh process, under the user's own ssh config.

The host-key policy is never weaker than the config's and known_hosts is never written. Nothing is forwarded: agent,
X11 and ports are simply never asked for. What paramiko cannot do (host certificates, a shared ControlPath, Kerberos,
...) is done by the system's ssh, chosen by itself and said in the session's reach.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import paramiko

from nccl_doctor.facts.model import NO_ANSWER, OURS, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport import command as programs
from nccl_doctor.transport import dial
from nccl_doctor.transport.auth_gate import AuthGate
from nccl_doctor.transport.base import ConnectOptions, Deadline, Stream, Transport, Unreachable
from nccl_doctor.transport.process import STDERR_TAIL, ProxyProcess
from nccl_doctor.transport.ssh_config import ConfigReader, HostConfig
from nccl_doctor.transport.ssh_errors import Connection, NeedsProgram, address_of, at_jump, channel_refused, text_of
from nccl_doctor.transport.ssh_login import LogIn, expect_banner

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its tracebacks are told as outcomes

_RETRIES = 3  # of a connection closed before the handshake: sshd's MaxStartups drops at random
_ONLY_PROGRAM = (
    "pkcs11provider",
    "certificatefile",
    "knownhostscommand",
    "revokedhostkeys",
    "bindaddress",
    "bindinterface",
)


_ONLY_FOR_PEOPLE = {
    "remotecommand": "none",
    "sessiontype": "default",
    "stdinnull": "no",
    "forkafterauthentication": "no",
}


class ChannelStream:
    """The remote command's streams over one paramiko channel."""

    may_block = False  # sshd's window is 2 MiB

    def __init__(self, client: Connection, channel: paramiko.Channel, address: str, port: int, note: str) -> None:
        self._client = client
        self._channel = channel
        self._tail = bytearray()
        self.address = address
        self.port = port
        self.note = note

    def write(self, data: bytes, limit_s: float) -> None:
        """Write all of it. ``TimeoutError`` when none of it went for so long, ``OSError`` when the other side is gone."""
        self._channel.settimeout(max(limit_s, 0.01))
        try:
            self._channel.sendall(data)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(text_of(error)) from error

    def read(self, limit_s: float) -> bytes:
        """What has come, at least one byte; empty at the end. ``TimeoutError`` when nothing came in time."""
        self._keep_stderr()
        self._channel.settimeout(max(limit_s, 0.01))
        try:
            return self._channel.recv(1 << 16)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(text_of(error)) from error

    def _keep_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            self._tail += self._channel.recv_stderr(1 << 16)
            del self._tail[:-STDERR_TAIL]

    def error_text(self) -> str:
        """The last few kilobytes of the command's stderr."""
        self._keep_stderr()
        return bytes(self._tail).decode("utf-8", "replace")

    def status(self, limit_s: float) -> int | None:
        """The command's exit status; None where it did not come in time or the connection broke first."""
        self._channel.status_event.wait(limit_s)
        return self._channel.exit_status if self._channel.exit_status >= 0 else None

    def close(self, grace_s: float = 1.5) -> None:
        """End the command's input, give it a moment to end, close the connection."""
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self._channel.shutdown_write()
            if self._client.is_active():
                self._channel.status_event.wait(grace_s)
        with contextlib.suppress(OSError, EOFError):  # the jump host may be gone first
            self._client.close()
        self._client.join(1.0)  # a thread inside a C library while the interpreter ends may take the exit code along


class _Jump:
    """One shared connection to a jump host, or the reason why there is none; made once."""

    def __init__(self, fan_out: int) -> None:
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(fan_out)
        self.client: Connection | None = None
        self.trouble: Unreachable | None = None


class SshTransport(Transport):
    """Connects to all hosts of a run; thread-safe."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._configs = ConfigReader(options.ssh_config)
        self._gate = AuthGate(options.auth_failures)
        self._log_in = LogIn(self._gate)
        self._lock = threading.Lock()
        self._jumps: dict[tuple[str, ...], _Jump] = {}
        self._proxies = threading.BoundedSemaphore(options.jump_fan_out)

    # The transport's contract

    def open(self, entry: HostEntry, command: str, deadline: Deadline) -> Stream:
        """A stream to the command on the host; raises :class:`Unreachable`."""
        config = self._configs.resolve(entry)
        try:
            _check_abilities(config)
            client, note = self._connect(config, config.one("proxyjump"), deadline)
        except NeedsProgram as reason:
            return self._open_with_program(entry, config, command, deadline, str(reason))
        limit_s = deadline.left(self._options.start_s)
        end = time.monotonic() + limit_s
        address = address_of(client) or config.hostname
        try:
            channel = _start(client, command, limit_s)
        except Exception as error:
            client.close()
            if not isinstance(error, paramiko.SSHException | OSError | EOFError):
                raise
            if time.monotonic() >= end:
                outcome, detail = ReachOutcome.TIMED_OUT, f"{NO_ANSWER} within {limit_s:.0f} s: sshd started no command"
            else:
                outcome = ReachOutcome.CUT_OFF
                detail = "logged in, but no command could be started (MaxSessions, ForceCommand or a dying sshd)"
            raise Unreachable(outcome, detail, text_of(error), address=address, port=config.port) from error
        return ChannelStream(client, channel, address, config.port, note)

    def explain(self, stream: Stream, status: int | None) -> Unreachable | None:
        """Only the ssh program can end a stream by itself."""
        return programs.explain("ssh", stream, status) if isinstance(stream, programs.CommandStream) else None

    def settled(self, stream: Stream, outcome: ReachOutcome) -> None:
        """Tell the gate how a login by the ssh program went."""
        programs.settle(stream, outcome)

    def close(self) -> None:
        """Close the connections to jump hosts."""
        with self._lock:
            jumps = list(self._jumps.values())
        for jump in jumps:
            if jump.client is not None:
                jump.client.close()

    # Routes

    def _connect(self, config: HostConfig, route: str, deadline: Deadline) -> tuple[Connection, str]:
        """A logged-in connection, through the jump hosts of ``route``, and a note; raises :class:`Unreachable`."""
        if not route:
            return self._connect_directly(config, deadline)
        jump = self._jump(tuple(route.split(",")), deadline, ())
        with _turn(jump.slots, deadline, f"jump host {route}"):
            client, note = self._connect_through(jump, config, route, deadline)
        return client, ", ".join(filter(None, (f"through {route}", note)))

    def _connect_through(
        self, jump: _Jump, config: HostConfig, route: str, deadline: Deadline
    ) -> tuple[Connection, str]:
        end = time.monotonic() + deadline.left(self._limit_s(config))
        channel = _channel_to(jump, config, route, end - time.monotonic())
        try:
            return self._log_in.connect(channel, config, max(0.1, end - time.monotonic()), deadline)
        except ConnectionError as error:
            detail = "the connection through the jump host was closed before the handshake"
            raise Unreachable(
                ReachOutcome.CUT_OFF, detail, text_of(error), address=config.hostname, port=config.port
            ) from error

    def _limit_s(self, config: HostConfig) -> float:
        return float(config.one("connecttimeout", "0") or 0) or self._options.connect_s

    def _jump(self, hops: tuple[str, ...], deadline: Deadline, path: tuple[tuple[str, ...], ...]) -> _Jump:
        """The connection to the last of these hops, made by whoever needs it first; ``path`` leads here."""
        if hops in path:
            circle = " -> ".join(one[-1] for one in (*path, hops))
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, "ProxyJump leads in a circle", circle)
        with self._lock:
            jump = self._jumps.setdefault(hops, _Jump(self._options.jump_fan_out))
        if not jump.lock.acquire(timeout=deadline.left(3 * self._options.connect_s)):
            raise Unreachable(ReachOutcome.TIMED_OUT, f"jump host {hops[-1]}: not connected in time", ",".join(hops))
        try:
            if jump.client is None and jump.trouble is None:
                jump.client = self._connect_jump(hops, deadline, path)
        except Unreachable as found:
            jump.trouble = at_jump(found, hops[-1])
        finally:
            jump.lock.release()
        if jump.trouble is not None:
            raise jump.trouble
        return jump

    def _connect_jump(self, hops: tuple[str, ...], deadline: Deadline, path: tuple[tuple[str, ...], ...]) -> Connection:
        """Log in to the last hop, through the hops before it or through its own ProxyJump."""
        config = self._configs.resolve(_hop_entry(hops[-1]))
        before = hops[:-1] or tuple(filter(None, config.one("proxyjump").split(",")))
        try:
            _check_abilities(config)
            if not before:
                return self._connect_directly(config, deadline)[0]
            outer = self._jump(before, deadline, (*path, hops))
            return self._connect_through(outer, config, before[-1], deadline)[0]
        except NeedsProgram as reason:
            detail = f"cannot be used as a jump host: {reason}; use --transport 'command=ssh {{host}}'"
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, hops[-1]) from None

    def _connect_directly(self, config: HostConfig, deadline: Deadline) -> tuple[Connection, str]:
        """Connect and log in. Most ProxyCommands lead through one host, so they are run no more at a time than jumps."""
        if not config.one("proxycommand"):
            return self._connect_patiently(config, deadline)
        with _turn(self._proxies, deadline, "the ProxyCommand"):
            return self._connect_patiently(config, deadline)

    def _connect_patiently(self, config: HostConfig, deadline: Deadline) -> tuple[Connection, str]:
        """A connection that is closed at once is tried again after a pause."""
        end = time.monotonic() + deadline.left(self._limit_s(config))
        for attempt in range(1, _RETRIES + 1):
            line = _dial(config, max(0.1, end - time.monotonic()))
            try:
                expect_banner(line, config, max(0.1, end - time.monotonic()))
                return self._log_in.connect(line, config, max(0.1, end - time.monotonic()), deadline)
            except OSError as error:
                ending = line.ending() if isinstance(line, ProxyProcess) else ()
                line.close()
                pause = 0.1 * 2**attempt * (1 + random.random())
                if attempt == _RETRIES or time.monotonic() + pause > end:
                    raise _closed_at_once(config, attempt, error, ending) from error
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _open_with_program(
        self, entry: HostEntry, config: HostConfig, command: str, deadline: Deadline, reason: str
    ) -> Stream:
        """Let the system's ssh do what paramiko cannot."""
        program = shutil.which("ssh")
        if program is None:
            detail = f"{OURS} lacks the ssh program, which is needed: {reason}"
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, "ssh: not found in PATH")
        argv = [program, *(["-F", self._options.ssh_config] if self._options.ssh_config else []), "-T"]
        more = [
            f"{keyword}={harmless}"  # else no command would run, or none would read our input
            for keyword, harmless in _ONLY_FOR_PEOPLE.items()
            if config.one(keyword, harmless) != harmless
        ]
        if config.strict_host_keys in ("no", "accept-new"):
            # ssh writes new keys into the first file only: that is no file, and nothing is written
            files = " ".join(f'"{name}"' for name in ("/dev/null", *config.known_hosts_files))
            more.append(f"UserKnownHostsFile={files}")
        argv += programs.ssh_words(entry, self._limit_s(config), more=more)
        with contextlib.ExitStack() as turn:
            if config.one("proxyjump") or config.one("proxycommand"):  # a connection of its own to the host between
                turn.enter_context(_turn(self._proxies, deadline, "the host between"))
            stream = programs.start([*argv, "--", config.destination, command], entry, self._gate, deadline)
            stream.turn = turn.pop_all()
        stream.note = f"by the ssh program: {reason}"
        stream.address, stream.port = config.hostname, config.port
        return stream


def _start(client: Connection, command: str, limit_s: float) -> paramiko.Channel:
    """A channel on which the command runs. Of itself paramiko waits for ever for sshd to say that it started it."""
    watchdog = threading.Timer(limit_s, client.close)
    watchdog.daemon = True
    watchdog.start()
    try:
        channel = client.open_session(timeout=limit_s)
        channel.exec_command(command)
    finally:
        watchdog.cancel()
    return channel


@contextlib.contextmanager
def _turn(slots: threading.BoundedSemaphore, deadline: Deadline, where: str) -> Iterator[None]:
    if not slots.acquire(timeout=deadline.left(600.0)):
        raise Unreachable(ReachOutcome.NOT_TRIED, f"the run's deadline passed before its turn at {where}")
    begun = time.monotonic()
    try:
        yield
    except Unreachable as found:  # the wait was not the host's
        found.reach = msgspec.structs.replace(found.reach, seconds=time.monotonic() - begun)
        raise
    finally:
        slots.release()


def _closed_at_once(config: HostConfig, attempts: int, error: Exception, ending: tuple[str, ...]) -> Unreachable:
    """``ending``: how a ProxyCommand ended. Whose trouble that is, only its own words can tell."""
    if ending:
        missing = ending[0] in ("exit status 126", "exit status 127")
        what = f"{OURS} cannot run the ProxyCommand" if missing else "the ProxyCommand gave no connection"
        detail = f"{what}, {attempts} times: {config.one('proxycommand')}"
        said = (text_of(error), *ending)
        return Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, *said, address=config.hostname, port=config.port)
    why = "MaxStartups, PerSourcePenalties, fail2ban, hosts.deny"
    detail = f"sshd closed the connection before its first line, {attempts} times ({why})"
    return Unreachable(ReachOutcome.CUT_OFF, detail, text_of(error), address=config.hostname, port=config.port)


def _hop_entry(hop: str) -> HostEntry:
    """``user@host:port`` of a ProxyJump, which ssh has checked already."""
    user, _, place = hop.removeprefix("ssh://").rpartition("@")
    host, port = place, ""
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.lstrip(":")
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    return HostEntry(host, user, int(port) if port.isdigit() else None)


def _check_abilities(config: HostConfig) -> None:
    """Raise where the config asks for what paramiko has not."""
    if not config.known:
        return
    control = config.expand(config.one("controlpath"))
    if control and Path(control).exists():
        raise NeedsProgram("a shared connection is open (ControlPath)")
    for keyword in _ONLY_PROGRAM:
        if config.one(keyword):
            raise NeedsProgram(f"the ssh config sets {keyword}")
    if config.one("proxycommand") and config.one("proxyusefdpass") == "yes":
        raise NeedsProgram("the ssh config sets proxyusefdpass")


def _dial(config: HostConfig, limit_s: float) -> Any:
    """The byte stream beneath: a TCP connection, or the config's ProxyCommand."""
    proxy = config.one("proxycommand")
    if proxy:
        try:
            return ProxyProcess(config.expand(proxy))
        except OSError as error:
            detail = f"{OURS} cannot start the ProxyCommand"
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, text_of(error)) from error
    return dial.connect(config.hostname, config.port, config.one("addressfamily", "any"), limit_s)


def _channel_to(jump: _Jump, config: HostConfig, route: str, limit_s: float) -> Any:
    """A TCP connection that the jump host makes for us; its errors are sorted like our own."""
    assert jump.client is not None
    target = f"{config.hostname} port {config.port} from jump host {route}"
    place = (config.hostname, config.port)
    try:
        return jump.client.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=max(limit_s, 0.1))
    except (paramiko.SSHException, OSError, EOFError) as error:
        if said := jump.client.refusal:
            raise channel_refused(said, target, config) from error
        slow = "Timeout" in str(error)
        outcome = ReachOutcome.TIMED_OUT if slow else ReachOutcome.CUT_OFF
        broke = f"jump host {route.rpartition(',')[2]}: the connection to it broke"
        detail = "no answer through the jump host in time" if slow else broke
        evidence = f"{target}: {text_of(error)}"
        raise Unreachable(outcome, detail, evidence, address=place[0], port=place[1]) from error
