"""From the options to hosts: which they are, how they are reached, what they tell."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.cli import _inputs, _signals, _tell

if TYPE_CHECKING:
    from nccl_doctor.collect.run import CheckOptions
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.inventory import HostEntry, Inventory
    from nccl_doctor.transport.base import ConnectOptions


def is_this_machine(hosts_file: str | None, host_list: str | None, slurm: bool) -> bool:
    """Whether no hosts were named: then this machine is examined, without ssh."""
    return hosts_file is None and host_list is None and not slurm


def load_inventory(hosts_file: str | None, host_list: str | None, slurm: bool) -> Inventory:
    """The inventory these options name; notices go to stderr."""
    from nccl_doctor import inventory

    if host_list and os.path.isfile(host_list):  # noqa: PTH113 - of a Path, a list of many hosts is too long a name
        _tell.say(f"-H names hosts; {host_list} is a file here, too: --hosts {host_list}?")
    with _inputs.bad_input_stops():
        found = inventory.load(hosts_file, host_list, slurm, os.environ, sys.stdin.buffer)
    for notice in found.notices:
        _tell.say(notice)
    return found


def check_master(master: str, inventory: Inventory) -> None:
    """Stop where the job's master is none of its hosts."""
    names = [entry.name for entry in inventory.entries]
    if master and master not in names:
        _tell.stop(
            f"--master {master}: not among the hosts ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
        )


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
        _tell.stop(f"--transport {transport!r}: expected ssh, local or command=TEMPLATE (with {{host}} in it)")
    if transport.startswith("command="):
        from nccl_doctor.transport.command import TemplateError, parse_template

        try:
            program = parse_template(transport.removeprefix("command=")).words[0]
        except TemplateError as error:
            _tell.stop(f"--transport: {error}")
        if shutil.which(program) is None:  # no fault of any host
            _tell.stop(f"--transport: there is no program {program} on this machine (or not in PATH)")
    if transport == "local" and not local:
        _tell.stop("--transport local examines this machine, not the hosts that are named: leave out one of the two")
    if local and (transport not in ("", "local") or ssh_config is not None):
        option = "--ssh-config" if ssh_config is not None else "--transport"
        _tell.stop(f"{option} is for reaching hosts, and none is named: name them by --hosts FILE or -H HOSTS")
    if ssh_config is not None:
        try:
            with ssh_config.open("rb") as stream:
                stream.read(1)
        except OSError as error:
            _tell.stop(f"--ssh-config {ssh_config}: {error.strerror or error}")
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
        say_interrupted()


def say_interrupted() -> None:
    """Say what ended the run before its end, above what it measured."""
    _tell.say(f"{_signals.interrupted_by()}: this is what was measured until then")
