"""``nccl-doctor preflight``: go or no-go before a training job, within a time budget."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _judging, _options, _tell, app, examples
from nccl_doctor.facts.fold import fold
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.cli._guard import Following
    from nccl_doctor.collect.run import CheckOptions
    from nccl_doctor.facts.model import Bundle, Plan
    from nccl_doctor.inventory import Inventory
    from nccl_doctor.rules.gate import Gate
    from nccl_doctor.rules.judge import Report
    from nccl_doctor.rules.policy import Policy
    from nccl_doctor.rules.thresholds import Overrides

_TOLD = [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]  # by somebody, not by us


@app.command(
    short_help="Go or no-go before a training job; on go, run it.",
    context_settings=_options.OF_A_COMMAND,
    epilog=examples(
        {
            "preflight --slurm --min-hosts 16 --require gpus=8 -- srun ...": "",
            "preflight --hosts hostfile --report junit=out.xml": "",
            "preflight --profile quick --format nhc": "this node alone",
        },
        codes="0 go (with a command: its own), 4 not all could be measured, 11 faults",
    ),
)
def preflight(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ...]", help="Run this, only on go, and pass on its exit code."),
    ] = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time for all of it, such as 90s or 3m. [default: 120s]")
    ] = "",
    profile: Annotated[
        str, typer.Option(metavar="quick|standard|full", help="How much is measured. [default: standard]")
    ] = "",
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="What the job needs: gpus=8,ib-ports=8,shm=16G,disk=100G,min-busbw=40,same=torch,nccl,driver.",
        ),
    ] = None,
    silence: _options.Silence = "10m",
    on_hang: _options.OnHang = "tell",
    keep: _options.KeepIn = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="If COMMAND fails, but not by its own program, start it again, each time after a preflight.",
        ),
    ] = 0,
    policy: _options.PolicyFile = None,
    thresholds: _options.Thresholds = None,
    min_hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Go with N good hosts [default: all].")
    ] = None,
    spares: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Choose exactly --min-hosts, keep N spares.")
    ] = None,
    good_hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the chosen hosts here, in the input's own format.")
    ] = None,
    bad_hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the hosts that are not good here, as a node set (for Slurm --exclude)."
        ),
    ] = None,
    report: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT=FILE",
            help="Also write a report, such as junit=out.xml (repeatable); formats: see --format.",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            parser=_options.report_format,
            metavar="FORMAT",
            help="What is printed: text, junit, github, gitlab, sarif, json, prometheus, nhc, html.",
        ),
    ] = "text",
    no_env: Annotated[bool, typer.Option("--no-env", help="Do not export the recommended environment.")] = False,
    master: _options.Master = "",
    master_port: _options.MasterPort = 29500,
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    save: _options.Save = None,
    history: _options.History = None,
    from_: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Decide from a saved bundle.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Hosts with warnings are not good.")] = False,
    verbose: _options.Verbose = False,
) -> None:
    """Decide go or no-go for a job on these hosts, and leave the good hosts behind.

    What does not fit the budget is left out and counts as unknown; unknown is never healthy.
    """
    rules = _judging.load_policy(policy)
    files = _Files(_outputs(report or []), good_hosts, bad_hosts, save, history)
    files.check({"--hosts": hosts, "--from": from_, "--policy": policy, "--thresholds": thresholds})
    if spares is not None and min_hosts is None and rules.min_hosts is None:
        _tell.stop("--spares needs --min-hosts: without it all good hosts are chosen, and none is spare")
    if command:
        _inputs.check_program(command)
    elif idle := _options.given(context, ("silence", "on_hang", "keep", "retries")):
        _tell.stop(f"{idle}: of a COMMAND that is run, and there is none (it goes behind --)")
    local = _hosts.is_this_machine(hosts, host_list, slurm)
    rows = _judging.load_thresholds(thresholds, rules.thresholds)
    needs = _requirements(require or []) or rules.require
    earlier = None if from_ is None else _judging.requiring(_inputs.read_saved(context, from_), needs)
    inventory = _hosts.load_inventory(hosts, host_list, slurm) if earlier is None else _inventory_of(earlier)
    needed = min_hosts or rules.min_hosts
    if needed is not None and needed > len(inventory.entries):
        hosts_are = "is only 1 host" if len(inventory.entries) == 1 else f"are only {len(inventory.entries)} hosts"
        _tell.stop(f"{_said('min-hosts', min_hosts)} {needed}: there {hosts_are}")
    budget_s = _options.seconds(budget or rules.budget or "120s", _said("budget", budget), "90s, 3m or 1h")
    measuring = None
    if earlier is None:
        from nccl_doctor.collect.run import CheckOptions
        from nccl_doctor.rules.policy import PROFILES

        chosen = profile or rules.profile or "standard"
        if chosen not in PROFILES:
            _tell.stop(f"--profile {chosen!r}: expected one of {', '.join(PROFILES)}")
        plan = _plan(inventory, chosen, needs, master, master_port)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        measuring = CheckOptions(plan=plan, connect=connect, deadline_s=budget_s)
    question = _Question(inventory, rules, rows, needed, spares, strict or rules.strict, earlier, measuring)

    def decision() -> tuple[Bundle, Gate, Report]:
        """Measure, decide, tell, and leave the files behind; ends the program unless it is a go."""
        bundle, gate, judged = question.answer()
        code, saved = files.write(inventory, bundle, gate, judged)
        _judging.print_report(format, judged, gate, bundle, code, verbose=verbose, saved=saved)
        if code is not ExitCode.HEALTHY or not command:
            raise typer.Exit(code)
        return bundle, gate, judged

    if not command:
        decision()
    else:
        from nccl_doctor.cli._guard import following

        followed = following(silence, on_hang, keep, measuring.connect if measuring else None)
        raise typer.Exit(_attempts(command, retries, inventory, followed, decision, no_env))


@dataclasses.dataclass(frozen=True)
class _Question:
    """What is decided: by an ``earlier`` run that was saved, else by ``measuring`` the hosts, anew each time."""

    inventory: Inventory
    rules: Policy
    rows: Overrides | None
    min_hosts: int | None
    spares: int | None
    strict: bool
    earlier: Bundle | None
    measuring: CheckOptions | None

    def answer(self) -> tuple[Bundle, Gate, Report]:
        """What was measured, what is decided by it, and why."""
        from nccl_doctor.rules.gate import asking_all, decide
        from nccl_doctor.rules.groups import groups

        bundle = self.earlier
        if self.measuring is not None:
            bundle = _hosts.collect_facts(self.inventory.entries, self.measuring, self._fit)
        assert bundle is not None
        _hosts.tell_interrupted(bundle)
        judged = _judging.judged(bundle, self.rules, self.rows)
        if self.earlier is not None:
            judged = asking_all(judged, bundle.plan, self.rules.profile)
        gate = decide(
            judged,
            min_hosts=self.min_hosts,
            spares=self.spares,
            strict=self.strict,
            groups=groups(bundle),
            master=bundle.plan.master,
        )
        _tell_master(bundle.plan, gate)
        return bundle, gate, judged

    def _fit(self, so_far: Bundle) -> list[str]:
        """Which hosts the collectives run on. What the job requires of a later stage is not missing yet."""
        import msgspec

        from nccl_doctor.rules.gate import BAD, UNKNOWN, decide_hosts
        from nccl_doctor.rules.requirements import stage_of

        needs = tuple(need for need in so_far.plan.require if stage_of(need) in so_far.plan.stages)
        so_far = msgspec.structs.replace(so_far, plan=msgspec.structs.replace(so_far.plan, require=needs))
        judged = _judging.judged(so_far, self.rules, self.rows)
        return [item.host for item in decide_hosts(judged) if item.state not in (BAD, UNKNOWN)]


@dataclasses.dataclass(frozen=True)
class _Files:
    """What a decision leaves behind."""

    reports: dict[str, Path]  # format: where to
    good_hosts: Path | None
    bad_hosts: Path | None
    save: Path | None
    history: Path | None

    def check(self, inputs: Mapping[str, str | Path | None]) -> None:
        """Stop where a file could not be written at the end, or is an input; say so of a report that cannot be written: its
        result is printed all the same."""
        files = {"--good-hosts": self.good_hosts, "--bad-hosts": self.bad_hosts, "--save": self.save}
        for option, path in files.items():
            if path is not None:
                _inputs.check_writable(path, option, inputs)
        of: dict[str, str] = {}
        for option, path in (files | {f"--report {name}": path for name, path in self.reports.items()}).items():
            if path is not None and (not path.exists() or path.is_file()):  # many may go to a terminal or to /dev/null
                first = of.setdefault(os.path.realpath(path), option)
                if first != option:
                    _tell.stop(f"{option} {path}: {first} goes there, and only one of them would be kept")
        for name, path in self.reports.items():
            _inputs.check_kept(path, f"--report {name}", inputs)
            place = path if path.exists() else path.parent
            if not os.access(place, os.W_OK) or path.is_dir():
                why = "is a directory" if path.is_dir() else "is not writable" if place.exists() else "does not exist"
                _tell.say(f"--report {name}={path}: cannot be written ({place} {why}): the decision is told without it")

    def write(self, inventory: Inventory, bundle: Bundle, gate: Gate, judged: Report) -> tuple[ExitCode, str]:
        """Write all of it; the exit code, and where the bundle was saved. The decision holds without its record, but not
        without the hosts that the job is to run on."""
        from nccl_doctor.report import formats
        from nccl_doctor.rules.gate import exit_code

        code = exit_code(judged, gate)
        saved = _judging.save_bundle(bundle, self.save)
        _judging.keep(self.history, bundle, judged, "preflight", gate)
        if not self._write_hosts(inventory, gate) and gate.go:
            code = ExitCode.INTERNAL_ERROR  # the job would run on the hosts of an older file
        for name, path in self.reports.items():
            _write(path, formats.render(name, judged, gate, bundle))
        _judging.step_summary(judged, gate)
        return (ExitCode.INTERRUPTED if bundle.interrupted else code), saved

    def _write_hosts(self, inventory: Inventory, gate: Gate) -> bool:
        """Whether the files of hosts that were asked for are written."""
        from nccl_doctor.inventory import render

        written = True
        if self.good_hosts is not None:
            text = render((entry for entry in inventory.entries if entry.name in gate.chosen), inventory.format)
            comments = inventory.format not in ("nodeset", "slurm")  # a node set is read as a whole, by $(cat FILE)
            written = _write(self.good_hosts, text + "".join(f"# spare: {name}\n" for name in gate.spares if comments))
        if self.bad_hosts is not None:
            written = _write(self.bad_hosts, f"{fold(gate.not_good)}\n" if gate.not_good else "") and written
        return written


def _outputs(wanted: list[str]) -> dict[str, Path]:
    from nccl_doctor.report import formats

    outputs: dict[str, Path] = {}
    for text in wanted:
        name, equals, path = text.partition("=")
        if not equals or not path or name not in formats.names():
            _tell.stop(f"--report {text!r}: expected FORMAT=FILE with one of {', '.join(formats.names())}")
        if path == "-":
            _tell.stop(f"--report {text!r}: writes a file; on standard output: --format {name}")
        if name in outputs:
            _tell.stop(f"--report {text!r}: {name} goes to {outputs[name]} already")
        outputs[name] = Path(path)
    return outputs


def _said(name: str, option: object) -> str:
    """Where a value that is wrong was given."""
    return f"--{name}" if option else f"{name} in the policy file"


def _requirements(options: list[str]) -> tuple[str, ...]:
    from nccl_doctor.rules import requirements

    found = tuple(part for text in options for part in requirements.split(text))
    try:
        for part in found:
            requirements.parse(part)
    except requirements.RequirementError as error:
        _tell.stop(f"--{error}")
    return found


def _plan(inventory: Inventory, profile: str, needs: tuple[str, ...], master: str, master_port: int) -> Plan:
    from nccl_doctor.facts.model import Plan
    from nccl_doctor.rules.engine import STAGES

    _hosts.check_master(master, inventory)
    return Plan(
        stages=tuple(stage for stage in STAGES if profile != "quick" or stage != "collectives"),
        master=master or inventory.entries[0].name,
        master_port=master_port,
        mesh="full" if profile == "full" else "sparse",
        quick=profile == "quick",
        require=needs,
    )


def _inventory_of(bundle: Bundle) -> Inventory:
    from nccl_doctor.inventory import HostEntry, Inventory

    hosts = sorted(
        bundle.hosts, key=lambda facts: facts.name != bundle.plan.master
    )  # which the job's ranks look for first
    entries = tuple(HostEntry(facts.name, slots=facts.slots) for facts in hosts)
    return Inventory(entries, format="openmpi" if any(entry.slots for entry in entries) else "plain")


def _tell_master(plan: Plan, gate: Gate) -> None:
    """Say that the job's master is another host than the one whose master port was tried."""
    if gate.go and len(gate.chosen) > 1 and "ports" in plan.stages and plan.master not in gate.chosen:
        _tell.say(
            f"port {plan.master_port} was tried on the master {plan.master}, which is not chosen; "
            "whether it is free and reachable on a chosen host is not known (--master HOST tries it there)"
        )


def _write(path: Path, text: str) -> bool:
    from nccl_doctor.facts import files

    try:
        files.write(path, text.encode())
    except OSError as error:
        _tell.say(f"{path}: {error.strerror or error}")
        return False
    return True


def _attempts(
    command: list[str],
    retries: int,
    inventory: Inventory,
    followed: Following,
    decision: Callable[[], tuple[Bundle, Gate, Report]],
    no_env: bool,
) -> int:
    """Run the command on each go, until it ends well, may not be started again, or no attempt is left; its exit code."""
    from nccl_doctor.cli._launch import launch
    from nccl_doctor.rules.retry import why_not

    unseen: tuple[str, ...] = ()  # hosts of which nobody knows what the last attempt left running
    for attempt in range(1, retries + 2):
        bundle, gate, judged = decision()
        if unknown := set(unseen).intersection(gate.chosen):
            _tell.say(f"not started again: whether ranks of the last attempt still run on {fold(unknown)} is not known")
            break
        if attempt > 1:
            _tell.say(f"attempt {attempt} of {retries + 1} on {fold(gate.chosen)}{_without(gate)}")
        ended = launch(command, () if no_env else judged.env, inventory, gate.chosen, followed, bundle)
        if ended.status == 0 or attempt > retries:
            break
        unseen = ended.unseen
        to_end = ended.told or ended.status in _TOLD
        told = "it was told to end" if to_end else "it cannot be run" if ended.status == 127 else ""
        runs = "ranks of this attempt still run" if ended.runs_on else ""
        if why := runs or told or why_not(ended.cause, ended.title):
            _tell.say(f"not started again: {why}")
            break
        _tell.say(f"exit {ended.status}: looking at the hosts again, for attempt {attempt + 1} of {retries + 1}")
    return ended.status


def _without(gate: Gate) -> str:
    """The hosts that are not good, and why: one reason each."""
    reasons: dict[str, list[str]] = {}
    for item in gate.decisions:
        if item.host in gate.not_good:
            reasons.setdefault(item.because[0] if item.because else item.state, []).append(item.host)
    told = "; ".join(f"{fold(hosts)}: {why}" for why, hosts in reasons.items())
    return f", without {told}" if told else ""
