"""The command transport: any program that yields a stream to a command on a host (ssh, srun, kubectl, docker, ...).

A template is split into words once; ``{host}``, ``{user}`` and ``{port}`` are put into its words, never through a
shell. Where no word is ``{command}``, the remote command is appended: as one word for ssh, which hands it to the login
shell, and as ``sh -c COMMAND`` for programs that execute words.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from nccl_doctor.facts.model import OURS, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.auth_gate import AuthGate
from nccl_doctor.transport.base import ConnectOptions, Deadline, Stream, Transport, Unreachable
from nccl_doctor.transport.process import ProcessStream

# Given first, because ssh keeps the first value it meets: nothing is forwarded, asked, or written to known_hosts.
SSH_SAFETY = (
    "BatchMode=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "UpdateHostKeys=no",
    "RequestTTY=no",
    "ControlMaster=no",  # a shared connection that is open is used; none is left behind
    "ControlPersist=no",
)
_SHELL_PROGRAMS = frozenset(("ssh", "tsh", "gsissh", "rsh", "lsh"))
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_STEP_WAITS = "the step waits for another one to end: inside a job step, srun needs --overlap"
_STDERR_OUTCOMES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", ReachOutcome.HOST_KEY_CHANGED, "the host key changed"),
    ("has been marked as revoked", ReachOutcome.HOST_KEY_CHANGED, "the host key is revoked in known_hosts"),
    ("Host key verification failed", ReachOutcome.HOST_KEY_UNKNOWN, "the host key is not known"),
    ("host key is known for", ReachOutcome.HOST_KEY_UNKNOWN, "the host key is not known"),
    ("Permission denied (", ReachOutcome.AUTH_FAILED, "the login was refused"),
    ("Too many authentication failures", ReachOutcome.AUTH_FAILED, "the login was refused"),
    ("Could not resolve hostname", ReachOutcome.NAME_UNRESOLVED, "the name does not resolve"),
    ("Name or service not known", ReachOutcome.NAME_UNRESOLVED, "the name does not resolve"),
    ("Connection refused", ReachOutcome.REFUSED, "the connection was refused"),
    ("No route to host", ReachOutcome.NO_ROUTE, "there is no route to the host"),
    ("Network is unreachable", ReachOutcome.NO_ROUTE, "there is no route to the host"),
    ("timed out", ReachOutcome.TIMED_OUT, "the connection timed out"),
    ("Connection closed by", ReachOutcome.CUT_OFF, "the connection was closed during the handshake"),
    ("Connection reset by", ReachOutcome.CUT_OFF, "the connection was reset during the handshake"),
    ("queued and waiting for resources", ReachOutcome.NOT_TRIED, "the scheduler has no node free for it"),
    ("step creation temporarily disabled", ReachOutcome.NOT_TRIED, _STEP_WAITS),
)


class TemplateError(ValueError):
    """A template that cannot be used; the message says what was expected."""


class Template(msgspec.Struct, frozen=True):
    """A checked command template."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The program's bare name."""
        return PurePath(self.words[0]).name

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders in it."""
        return frozenset(name for word in self.words for name in _PLACEHOLDER.findall(word))

    def argv(self, entry: HostEntry, command: str, connect_s: float) -> list[str]:
        """The words to execute for one host."""
        values = {"host": entry.address or entry.name, "user": entry.user, "port": str(entry.port or 22)}
        values["command"] = command
        words = [_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in self.words]
        if self.program == "ssh":
            login = ("user" not in self.placeholders, "port" not in self.placeholders)
            words[1:1] = ssh_words(entry, connect_s, *login)
        if "command" not in self.placeholders:
            words += [command] if self.program in _SHELL_PROGRAMS else ["sh", "-c", command]
        return words


def ssh_words(
    entry: HostEntry, connect_s: float, user: bool = True, port: bool = True, more: Sequence[str] = ()
) -> list[str]:
    """The options to put first: those for safety, a limit, ``more`` of them, and user and port where they are wanted."""
    options = [*SSH_SAFETY, f"ConnectTimeout={max(1, round(connect_s))}", *more]
    words = [word for option in options for word in ("-o", option)]
    words += ["-l", entry.user] if entry.user and user else []
    return words + (["-p", str(entry.port)] if entry.port and port else [])


def parse_template(text: str) -> Template:
    """Check a template; raises :class:`TemplateError`."""
    example = "for example: 'ssh -q {host}', 'srun --overlap -N1 -n1 -w {host}', 'kubectl exec -i {host} --'"
    try:
        template = Template(tuple(shlex.split(text)))
    except ValueError as error:
        raise TemplateError(f"command template {text!r}: {error}") from error
    if not template.words or "{" in template.words[0]:
        raise TemplateError(f"command template {text!r} must begin with a program; {example}")
    unknown = template.placeholders - {"host", "user", "port", "command"}
    if unknown:
        raise TemplateError(
            f"command template {text!r}: {{{min(unknown)}}} is not one of {{host}} {{user}} {{port}} {{command}}"
        )
    if "host" not in template.placeholders:
        raise TemplateError(f"command template {text!r} has no {{host}}; {example}")
    return template


class CommandTransport(Transport):
    """Starts one local program per host."""

    def __init__(self, template: str, options: ConnectOptions) -> None:
        """Raises :class:`TemplateError`."""
        self._template = parse_template(template)
        self.by_ssh = self._template.program == "ssh"
        self._options = options
        self._gate = AuthGate(options.auth_failures)

    def open(self, entry: HostEntry, command: str, deadline: Deadline) -> Stream:
        """A stream to the remote command; raises :class:`Unreachable`."""
        for name in ("user", "port"):
            if getattr(entry, name) and self._template.program != "ssh" and name not in self._template.placeholders:
                detail = f"the inventory names a {name} for this host, and the command template has no {{{name}}}"
                raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, " ".join(self._template.words))
        return start(self._template.argv(entry, command, self._options.connect_s), entry, self._gate, deadline)

    def explain(self, stream: Stream, status: int | None) -> Unreachable | None:
        """What the program itself said before it gave up."""
        return explain(self._template.program, stream, status)

    def settled(self, stream: Stream, outcome: ReachOutcome) -> None:
        """Tell the gate how the login went."""
        settle(stream, outcome)


class CommandStream(ProcessStream):
    """A stream that remembers whose login it was."""

    def __init__(self, argv: Sequence[str], entry: HostEntry, gate: AuthGate) -> None:
        environment = dict(os.environ, SSH_ASKPASS_REQUIRE="never")
        environment.pop("DISPLAY", None)
        super().__init__(argv, environment)
        self.entry = entry
        self.gate: AuthGate | None = gate
        self.argv = tuple(argv)
        self.port = entry.port or 0
        self.address = ""
        self.note = ""
        self.turn = contextlib.ExitStack()  # what it occupies until it is settled


def start(argv: Sequence[str], entry: HostEntry, gate: AuthGate, deadline: Deadline) -> CommandStream:
    """Start a program once the gate lets its user through; raises :class:`Unreachable`."""
    gate.enter(entry.user, deadline)
    try:
        return CommandStream(argv, entry, gate)
    except Exception as error:  # no program, no thread, a name that none can have
        gate.leave(entry.user, entry.name, ReachOutcome.TRANSPORT_FAILED)
        detail = f"{OURS} cannot start {argv[0]}: {getattr(error, 'strerror', None) or error}"
        raise Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, shlex.join(argv[:-1])) from error


def settle(stream: Stream, outcome: ReachOutcome) -> None:
    """Leave the gate, once. Any answer of a remote side that ran a command proves that the login was accepted."""
    if isinstance(stream, CommandStream) and stream.gate is not None:
        gate, stream.gate = stream.gate, None
        stream.turn.close()
        accepted = (ReachOutcome.NO_PYTHON, ReachOutcome.PYTHON_TOO_OLD)
        gate.leave(stream.entry.user, stream.entry.name, ReachOutcome.OK if outcome in accepted else outcome)


def explain(program: str, stream: Stream, status: int | None) -> Unreachable | None:
    """Translate a program's stderr. ssh's own failures end with 255, other programs' with anything; None: it runs."""
    text = stream.error_text()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if program in _SHELL_PROGRAMS and status != 255:
        return None
    for phrase, outcome, detail in _STDERR_OUTCOMES:
        if phrase in text:
            return Unreachable(outcome, f"{detail} (said by {program})", *_near(lines, phrase))
    if program == "srun" and status is None and not lines:  # that it waits it tells only with --verbose
        return Unreachable(ReachOutcome.NOT_TRIED, f"srun has started nothing: {_STEP_WAITS}")
    if status in (126, 127) and "OCI runtime" in text:  # runc's and crun's, told by docker, podman and kubectl
        return Unreachable(ReachOutcome.TRANSPORT_FAILED, f"{program} cannot start sh in the container", *lines[-3:])
    if status in (None, 0, 126, 127) or (program not in _SHELL_PROGRAMS and not lines):
        return None
    detail = f"{program} ended with status {status} before the agent answered"
    return Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, *(lines[-3:] or ["it printed nothing on stderr"]))


def _near(lines: list[str], phrase: str) -> list[str]:
    """The line with the phrase, and those with fingerprints and places."""
    return [line for line in lines if phrase in line or "SHA256:" in line or "Offending" in line][:4]
