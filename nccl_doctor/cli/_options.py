"""Options that commands share, how they are parsed, and which of them a user gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_doctor.cli import _tell

HostsFile = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="FILE", help="Hostfile (formats: nccl-doctor docs inventory), or - for standard input."
    ),
]


# Of what runs a COMMAND: its options are its own, also without the -- before it (mpirun has a -H, too).
OF_A_COMMAND = {"allow_interspersed_args": False}


def _refuse_misplaced(words: list[str] | None) -> None:
    if words:
        _tell.stop(f"{words[0]!r}: hosts are named by --hosts FILE or -H HOSTS")


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


class Seconds(float):
    """A time that an option has by default; --help tells it with its unit."""

    def __str__(self) -> str:
        return f"{self:g}s" if self % 60 else f"{self / 60:g}m"


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
        _tell.stop(f"{said} {text!r}: expected a time such as {such_as}")
    return found


def time_option(help: str, *, least: float = 1.0, most: float = 86400.0) -> Any:
    """An option that takes a time from ``least`` to ``most`` seconds."""

    def parse(text: object) -> float:
        found = _seconds(str(text))
        if not least <= found <= most:
            raise typer.BadParameter(f"{text!r}: expected seconds ({least:g} to {most:g}), or a time such as 30s or 1m")
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


def count(help: str, *, metavar: str = "N", most: int | None = None) -> Any:
    """An option that takes a whole number up to ``most``; 0 stands for the default that ``help`` names, in brackets."""
    return typer.Option(metavar=metavar, show_default=False, min=0, max=most, help=help)


def check_bandwidth(option: str, value: float, *, least: float = 1e-3) -> None:
    """Stop at what is no bandwidth: nothing is less than not-a-number, so that every run would be fast enough."""
    if not least <= value <= 1e5:
        _tell.stop(f"{option} {value:g}: expected GB/s, such as 45")


def choice(*words: str, help: str, parser: Callable[[str], str] | None = None) -> Any:
    """An option that takes one of these words."""

    def begun(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return typer.Option(parser=parser or one_of(*words), metavar="|".join(words), autocompletion=begun, help=help)


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
        _tell.stop(f"{why}, and nothing is measured: {idle} would change nothing")
