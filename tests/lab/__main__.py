"""A standing lab, by hand: ``python -m tests.lab`` (or ``make lab``) builds one, ``... down`` removes it."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from . import faults, lab
from .lab import Lab, LabError, missing_requirements, standing

PREFIX = "lab"


def up(arguments: argparse.Namespace) -> None:
    lab = Lab(arguments.hosts, arguments.prefix, arguments.subnet, arguments.python)
    lab.up()
    run = lab.directory / "lab-run"
    print(f"{arguments.hosts} hosts stand: {', '.join(lab.hostnames)}\n")
    print(f"  hostfile   {lab.hostfile}")
    print(f"  check      {run} nccl-doctor check --hosts {lab.hostfile}")
    print(f"  shell      {run}            (then: ssh gpu01, nccl-doctor check --hosts {lab.hostfile})")
    which = "" if arguments.prefix == PREFIX else f" --prefix {arguments.prefix}"
    print("  faults     python -m tests.lab faults")
    print(f"  break it   python -m tests.lab fault port-dropped gpu02{which}")
    print(f"  mend it    python -m tests.lab clear{which}")
    print(f"  remove     python -m tests.lab down{which}")


def down(arguments: argparse.Namespace) -> None:
    Lab(prefix=arguments.prefix).down()


def reap(arguments: argparse.Namespace) -> None:
    """Wait for the end of the pipe on stdin, that is for the end of the lab's owner; then remove the lab."""
    owner = lab.owner_of(arguments.prefix)
    sys.stdin.buffer.read()
    lab.reap(arguments.prefix, owner)


def list_labs(_: argparse.Namespace) -> None:
    print("\n".join(standing()) or "no lab stands")


def fault(arguments: argparse.Namespace) -> None:
    parameters = faults.parse_parameters(arguments.name, arguments.parameters)
    applied = Lab.attach(arguments.prefix).apply_fault(arguments.name, arguments.host, **parameters)
    print(f"{applied.name} on {applied.host.name}: {applied.summary}")


def clear(arguments: argparse.Namespace) -> None:
    cleared = Lab.attach(arguments.prefix).clear_faults()
    print(f"undone: {', '.join(cleared)}" if cleared else "no fault was applied")


def list_faults(_: argparse.Namespace) -> None:
    for name, kind in faults.all_faults().items():
        print(f"{name:<24}{kind.summary}")
        for parameter, default in kind.parameters().items():
            print(f"{'':<24}  {parameter}={default}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    top.set_defaults(call=up, hosts=4, prefix=PREFIX, subnet="10.77.0.0/24", python=sys.executable)
    commands = top.add_subparsers(metavar="COMMAND")

    def add(name: str, call: object, help: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(name, **({"help": help} if help else {}))  # without: for programs, and not listed
        command.set_defaults(call=call)
        command.add_argument("--prefix", default=PREFIX, help="the lab's name (default: lab)")
        return command

    build = add("up", up, "build a lab that stands until `down` (the default command)")
    build.add_argument("--hosts", type=int, default=4)
    build.add_argument("--subnet", default="10.77.0.0/24")
    build.add_argument("--python", default=sys.executable, help="what python3 is on the hosts (default: this one)")
    add("down", down, "remove it")
    add("reap", reap)
    add("list", list_labs, "the labs of this machine")
    add("faults", list_faults, "the faults there are")
    apply = add("fault", fault, "apply a fault")
    apply.add_argument("name")
    apply.add_argument("host", nargs="?", default="gpu02")
    apply.add_argument("parameters", nargs="*", metavar="NAME=VALUE")
    add("clear", clear, "undo all faults")
    return top


def main() -> int:
    arguments = parser().parse_args()
    missing = missing_requirements()
    if missing:
        print("no lab can stand here:\n  " + "\n  ".join(missing), file=sys.stderr)
        return 2
    try:
        arguments.call(arguments)
    except (LabError, ValueError, KeyError) as error:
        print(f"lab: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ``faults | head``
    if os.environ.get("PYTHONSAFEPATH"):
        print("lab: run from the project's top directory, without -P", file=sys.stderr)
    sys.exit(main())
