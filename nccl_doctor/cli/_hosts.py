"""Options that commands share, what they become, and the inputs that are refused before anything is done."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from nccl_doctor.cli import _signals
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.bench.outcome import Outcome
    from nccl_doctor.collect.run import CheckOptions
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.inventory import HostEntry, Inventory
    from nccl_doctor.transport.base import ConnectOptions

HostsFile = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="FILE", help="Hostfile (formats: nccl-doctor docs inventory), or - for standard input."
    ),
]


def _refuse_misplaced(words: list[str] | None) -> None:
    if words:
        stop(f"{words[0]!r}: hosts are named by --hosts FILE or -H HOSTS")


Misplaced = Annotated[
    list[str] | None,
    typer.Argument(hidden=True, metavar="[--hosts FILE | -H HOSTS]", callback=_refuse_misplaced),
]
HostList = Annotated[str | None, typer.Option("-H", metavar="HOSTS", help="Hosts, such as node[01-04],gpu7.")]
Slurm = Annotated[bool, typer.Option("--slurm", help="The hosts of this Slurm job (SLURM_JOB_NODELIST).")]


def typed(context: typer.Context, option: str) -> bool:
    """Whether an option was given on the command line, be it with its default's value."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _way(context: typer.Context, value: str) -> str:
    """Empty where nobody named one: then hosts are reached by ssh, and without hosts it is this machine."""
    return value if typed(context, "transport") else ""


Transport = Annotated[
    str,
    typer.Option(
        metavar="ssh|local|command=TEMPLATE",
        callback=_way,
        help="How to reach hosts. A template is a command with {host}, such as command='kubectl exec -i {host} --'.",
    ),
]
Python = Annotated[
    str, typer.Option(metavar="PATH", help="Python on the hosts: the training job's own, as that is what is examined.")
]
EnvSetup = Annotated[
    str, typer.Option(metavar="COMMAND", help="Shell command before it, such as 'source /opt/train/bin/activate'.")
]


def _seconds(text: str) -> float:
    """Of a number of seconds, or one with s, m, h or d behind it; not a number where it is neither."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError:
        return math.nan


def seconds(text: str, said: str, such_as: str, *, least: float = 1.0, most: float = 86400.0) -> float:
    """A time that a user gave, in seconds; stops where it is none from ``least`` to ``most`` seconds."""
    found = _seconds(text)
    if not least <= found <= most:
        stop(f"{said} {text!r}: expected a time such as {such_as}")
    return found


def time_option(help: str, *, least: float = 1.0, most: float = 86400.0) -> Any:
    """An option that takes a time from ``least`` to ``most`` seconds."""

    def parse(text: object) -> float:
        found = _seconds(str(text))
        if not least <= found <= most:
            raise typer.BadParameter(f"{text!r}: expected seconds ({least:g} to {most:g}), or a time such as 90s or 3m")
        return found

    return typer.Option(parser=parse, metavar="TIME", help=help)


ConnectTimeout = Annotated[float, time_option("Limit for connecting to one host, in seconds or such as 1m.", least=0.1)]
SshConfig = Annotated[
    Path | None,
    typer.Option("--ssh-config", metavar="FILE", help="ssh config file to use in place of the usual ones (ssh -F)."),
]
FanOut = Annotated[int, typer.Option(metavar="N", min=1, help="How many hosts are connected to at the same time.")]

RankZero = Annotated[str, typer.Option("--master", metavar="HOST", help="Host of rank 0 [default: the first].")]
StepLimit = Annotated[float, time_option("Limit of every single step, in seconds or such as 2m.")]

Deadline = Annotated[float, time_option("The whole run ends by then, in seconds or such as 5m.")]
Master = Annotated[str, typer.Option(metavar="HOST", help="The job's MASTER_ADDR host [default: the first].")]
MasterPort = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The job's MASTER_PORT.")]
Save = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep all collected facts as a bundle.")]
Saved = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Judge a saved bundle instead.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="All evidence, and what is only informative.")]
History = Annotated[
    Path | None,
    typer.Option("--history", metavar="PATH", help="Append this run to PATH/history.sqlite, or to this SQLite file."),
]


def ourselves(program: str, *words: str) -> list[str]:
    """A command line of this very installation, whatever lies in the working directory: ``main`` is ``nccl-doctor``."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from nccl_doctor.cli import main; {program}"
    return [sys.executable, "-c", start, *words]


def count(help: str, *, metavar: str = "N", most: int | None = None) -> Any:
    """An option that takes a whole number up to ``most``; 0 stands for the default that ``help`` names, in brackets."""
    return typer.Option(metavar=metavar, show_default=False, min=0, max=most, help=help)


def choice(*words: str, help: str, parser: Callable[[str], str] | None = None) -> Any:
    """An option that takes one of these words."""
    return typer.Option(parser=parser or one_of(*words), metavar="|".join(words), help=help)


def one_of(*words: str, also: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """A parser of an option that takes one of these words; ``also``: other spellings, and what each stands for."""

    def parse(word: str) -> str:
        word = (also or {}).get(word, word)
        if word not in words:
            raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}")
        return word

    return parse


def format_of(*formats: str) -> Callable[[str], str]:
    """A parser of ``--format``, in old words as well."""
    return one_of(*formats, also={"console": "text", "table": "text"})


def report_format(word: str) -> str:
    """A parser of ``--format`` where a report can be told in many."""
    from nccl_doctor.report import formats

    return format_of(*formats.names())(word) if word else ""


def release(text: str) -> str:
    """A parser of an NCCL or PyTorch release; empty is none given."""
    from nccl_doctor.env.versions import parse

    try:
        parse(text or "2.0")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def format_choice(*formats: str, help: str) -> Any:
    """``--format``. What people read is ``text``; some commands called it ``console``, ``bench`` ``table``."""
    return choice(*formats, help=help, parser=format_of(*formats))


Backend = Annotated[str, choice("auto", "nccl", "gloo", help="auto: nccl where every host has GPUs.")]
Format = Annotated[str, format_choice("text", "json", help="What is printed on standard output.")]
Silence = Annotated[
    str,
    typer.Option(metavar="TIME", help="Look for a hang when COMMAND has printed nothing for so long; 0: never."),
]
OnHang = Annotated[
    str, choice("tell", "end", help="Where two looks say that it hangs: only tell, or end COMMAND, too.")
]
KeepIn = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="If COMMAND fails or hangs, keep all that is needed to escalate, in a new directory in DIR."
    ),
]
Thresholds = Annotated[
    Path | None, typer.Option(metavar="FILE", help="YAML file with other limits (nccl-doctor docs thresholds).")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Policy file (nccl-doctor docs preflight) [default: nccl-doctor.toml or pyproject.toml here].",
    ),
]


def say(message: str) -> None:
    """A message on stderr; what came from hosts and files in it drives no terminal."""
    from nccl_doctor.report.safe_text import lines

    typer.echo(f"nccl-doctor: {lines(message)}", err=True)


def print_json(document: bytes) -> None:
    """A JSON document on stdout; nothing in it drives a terminal."""
    from nccl_doctor.report.safe_text import json_text

    sys.stdout.write(json_text(document))


def stop(message: str, code: ExitCode = ExitCode.USAGE) -> NoReturn:
    """End with a message on stderr."""
    say(message)
    raise typer.Exit(code)


@contextlib.contextmanager
def bad_input_stops() -> Iterator[None]:
    """Turn the typed errors of bad input into a usage error."""
    from nccl_doctor.facts.bundle import BundleError
    from nccl_doctor.inventory import InventoryError

    try:
        yield
    except (InventoryError, BundleError) as error:
        stop(str(error))


def _command_of(bundle: Bundle) -> str:
    """Which command kept it: what one looked at is nothing to another."""
    return {"job": "hang", "watch": "watch"}.get(bundle.plan.stages[0] if bundle.plan.stages else "", "check")


def read_bundle(path: Path, *, of: str = "check") -> Bundle:
    """A saved run of this command; stops where the file holds none: a look at a job says nothing of hosts."""
    from nccl_doctor.facts import bundle as bundles

    with bad_input_stops():
        bundle = bundles.read(path)
    kept_by = _command_of(bundle)
    if kept_by == of:
        return bundle
    if of == "check":
        stop(f"{path}: a bundle of {kept_by}; it is read by `nccl-doctor {kept_by} --from FILE`")
    stop(f"{path}: a bundle of {kept_by}; {of} reads what `nccl-doctor {of} --save FILE` keeps")


def saved_run(path: Path, said: str = "") -> Outcome:
    """A run that ``bench --save`` kept; stops where the file holds none, with ``said`` before the reason."""
    from nccl_doctor.bench.outcome import BaselineError, read

    try:
        return read(path)
    except BaselineError as error:
        stop(f"{said}{error}")


# Parameters that say what is measured, where and how long.
_MEASURES = {
    "hosts", "host_list", "slurm", "transport", "python", "env_setup", "connect_timeout", "fan_out", "ssh_config",
    "master", "master_port", "mesh", "quick", "deadline", "budget", "profile", "interval", "stacks",
    "silence", "on_hang", "retries", "every", "for_",
}  # fmt: skip


def given(context: typer.Context, names: Collection[str]) -> str:
    """Those of these parameters that stand on the command line, as they are spelled there."""
    return ", ".join(
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and parameter.name in names and typed(context, parameter.name)
    )


def nothing_is_measured(context: typer.Context, why: str) -> None:
    """Stop at options that would change nothing, as nothing is measured: what was asked for would not be so."""
    if idle := given(context, _MEASURES):
        stop(f"{why}, and nothing is measured: {idle} would change nothing")


def check_program(command: Sequence[str]) -> None:
    """Stop where a command cannot be run, before anything else is done."""
    if "{" in command[0] or shutil.which(command[0]):
        return
    if len(command) == 1 and len(command[0].split()) > 1:
        stop(f"{command[0]!r} is one word: leave out the quotes around the whole command")
    script = os.path.isfile(command[0])  # noqa: PTH113 - of a Path, a long command in quotes is no name but an error
    needs = (
        "a script, behind --, needs its interpreter before it" if script else "a command, behind --, must be in PATH"
    )
    stop(f"{command[0]!r} is no program: hosts are named by --hosts FILE or -H HOSTS; {needs}")


def read_saved(context: typer.Context, path: Path, *, of: str = "check") -> Bundle:
    """The run of ``--from``, in place of hosts."""
    nothing_is_measured(context, "--from judges a saved bundle")
    return read_bundle(path, of=of)


def columns(most: int) -> int:
    """How wide prose may be: as the terminal, where there is one."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def load_inventory(hosts_file: str | None, host_list: str | None, slurm: bool) -> Inventory:
    """The inventory these options name; notices go to stderr."""
    from nccl_doctor import inventory

    if host_list and os.path.isfile(host_list):  # noqa: PTH113 - of a Path, a list of many hosts is too long a name
        say(f"-H names hosts; {host_list} is a file here, too: --hosts {host_list}?")
    with bad_input_stops():
        found = inventory.load(hosts_file, host_list, slurm, os.environ, sys.stdin.buffer)
    for notice in found.notices:
        say(notice)
    return found


def is_this_machine(hosts_file: str | None, host_list: str | None, slurm: bool) -> bool:
    """Whether no hosts were named: then this machine is examined, without ssh."""
    return hosts_file is None and host_list is None and not slurm


def connect_options(
    transport: str,
    python: str,
    env_setup: str,
    connect_timeout: float,
    fan_out: int,
    local: bool,
    ssh_config: Path | None = None,
) -> ConnectOptions:
    """What the transport room needs to know; without hosts it is this machine, reached without ssh.

    Hosts are reached from here on: a time limit now ends the run as Ctrl-C does, with what was measured and tidied up.
    """
    from nccl_doctor.transport.base import ConnectOptions

    if transport not in ("", "ssh", "local") and not transport.startswith("command="):
        stop(f"--transport {transport!r}: expected ssh, local or command=TEMPLATE (with {{host}} in it)")
    if transport.startswith("command="):
        from nccl_doctor.transport.command import TemplateError, parse_template

        try:
            program = parse_template(transport.removeprefix("command=")).words[0]
        except TemplateError as error:
            stop(f"--transport: {error}")
        if shutil.which(program) is None:  # no fault of any host
            stop(f"--transport: there is no program {program} on this machine (or not in PATH)")
    if transport == "local" and not local:
        stop("--transport local examines this machine, not the hosts that are named: leave out one of the two")
    if local and (transport not in ("", "local") or ssh_config is not None):
        option = "--ssh-config" if ssh_config is not None else "--transport"
        stop(f"{option} is for reaching hosts, and none is named: name them by --hosts FILE or -H HOSTS")
    if ssh_config is not None:
        try:
            with ssh_config.open("rb") as stream:
                stream.read(1)
        except OSError as error:
            stop(f"--ssh-config {ssh_config}: {error.strerror or error}")
    _signals.end_like_ctrl_c()
    return ConnectOptions(
        transport="local" if local else transport or "ssh",
        python=python,
        env_setup=env_setup,
        connect_s=connect_timeout,
        fan_out=fan_out,
        ssh_config=str(ssh_config.resolve()) if ssh_config else "",
    )


def collect_facts(
    entries: Sequence[HostEntry], options: CheckOptions, choose: Callable[[Bundle], Collection[str]] | None = None
) -> Bundle:
    """What the hosts tell, with progress on stderr; ``choose``: see :func:`nccl_doctor.collect.check.collect`."""
    from nccl_doctor.collect.check import collect
    from nccl_doctor.report.progress import ConsoleProgress
    from nccl_doctor.report.terminal import stderr_console

    with ConsoleProgress(stderr_console()) as progress:
        return collect(entries, options, progress, choose)


def collect_all(entries: Sequence[HostEntry], options: CheckOptions) -> Bundle:
    """The same, for what can be concluded from a whole run only: an interrupted one ends the program."""
    bundle = collect_facts(entries, options)
    if bundle.interrupted:
        raise KeyboardInterrupt
    return bundle


def tell_interrupted(bundle: Bundle) -> None:
    """Say that the run was ended before its end, and by what."""
    if bundle.interrupted:
        say(f"{_signals.interrupted_by()}: this is what was measured until then")


def check_writable(path: Path, option: str) -> None:
    """Stop, before anything is done, where a file that is to be written at the end cannot be."""
    if str(path) == "-":
        stop(f"{option} -: writes a file, and standard output is none; name a file")
    if path.is_dir():
        stop(f"{option} {path}: is a directory; name a file")
    place = path.parent
    if not place.is_dir():
        stop(f"{option} {path}: there is no directory {place}")
    if not os.access(path if path.exists() else place, os.W_OK):
        stop(f"{option} {path}: may not be written by this user")


def check_directory(path: Path, option: str) -> None:
    """Stop, before anything is done, where nothing could be written beneath a directory, which need not be there yet."""
    import tempfile

    try:
        place = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        is_directory = place.is_dir()
    except OSError as error:
        stop(f"{option} {path}: {error.strerror or error}")
    if not is_directory:
        stop(f"{option} {path}: {place} is no directory")
    try:  # permissions do not tell all: a read-only file system, root on a network file system
        tempfile.TemporaryDirectory(prefix=".nccl-doctor-", dir=place).cleanup()
    except OSError as error:
        stop(f"{option} {path}: {place} cannot be written to: {error.strerror or error}")


def check_master(master: str, inventory: Inventory) -> None:
    """Stop where the job's master is none of its hosts."""
    names = [entry.name for entry in inventory.entries]
    if master and master not in names:
        stop(f"--master {master}: not among the hosts ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})")
