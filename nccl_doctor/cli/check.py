"""``nccl-doctor check``: examine hosts stage by stage, and name what would break a job on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _judging, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.rules.judge import Report
    from nccl_doctor.rules.thresholds import Overrides


def _stage_names(incomplete: str) -> list[str]:
    """The stages that begin so, for a shell's Tab."""
    from nccl_doctor.rules.engine import STAGES

    return [name for name in STAGES if name.startswith(incomplete)]


@app.command(
    short_help="Would a job run on these hosts, and if not, which is to blame?",
    epilog=examples(
        {
            "check": "this machine",
            "check --hosts hostfile --save run.ndb": "",
            "check -H gpu[01-64] --stage ports,interfaces": "",
            "check --from run.ndb --verbose": "judge it again, anywhere",
        },
        codes="0 healthy, 4 not all could be measured, 11 at least one fault",
    ),
)
def check(
    context: typer.Context,
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE",
            autocompletion=_stage_names,
            help="Only this stage (several: repeat, or commas): connectivity, ports, interfaces, system, software, gpu, "
            "topology, infiniband, collectives.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE", autocompletion=_stage_names, help="Leave this stage out (several: repeat, or commas)."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes long: throughput, collectives.")] = False,
    mesh: Annotated[str, _options.choice("sparse", "full", help="Which pairs of hosts measure each other.")] = "sparse",
    master: _options.Master = "",
    master_port: _options.MasterPort = 29500,
    nccl_version: Annotated[
        str,
        typer.Option(parser=_options.release, metavar="X.Y.Z", help="Judge by this NCCL version, not the found one."),
    ] = "",
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    deadline: _options.Deadline = _options.Seconds(180),
    format: _options.Format = "text",
    thresholds: _options.Thresholds = None,
    save: _options.Save = None,
    history: _options.History = None,
    from_: _options.Saved = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings alone give exit code 10.")] = False,
    verbose: _options.Verbose = False,
) -> None:
    """Check hosts: ssh, names, ports, interfaces, limits, software, GPUs, topology, InfiniBand, collectives.

    Without hosts, this machine is checked. Reads only; nothing is installed or changed on the hosts.
    """
    rows = _judging.load_thresholds(thresholds)
    if save is not None:
        _inputs.check_writable(save, "--save", {"--hosts": hosts, "--from": from_, "--thresholds": thresholds})
    if from_ is not None:
        bundle = _narrowed(_inputs.read_saved(context, from_), stage or [], skip or [], nccl_version)
    else:
        from nccl_doctor.collect.run import CheckOptions
        from nccl_doctor.facts.model import Plan

        local = _hosts.is_this_machine(hosts, host_list, slurm)
        stages = _stages(stage or [], skip or [], quick)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        found = _hosts.load_inventory(hosts, host_list, slurm)
        _hosts.check_master(master, found)
        plan = Plan(
            stages=stages,
            master=master or found.entries[0].name,
            master_port=master_port,
            mesh=mesh,
            quick=quick,
            nccl_version=nccl_version,
        )
        options = CheckOptions(plan=plan, connect=connect, deadline_s=deadline)
        bundle = _hosts.collect_facts(found.entries, options, _fit(rows))
    _conclude(bundle, rows, format, save, history, strict, verbose)


def _narrowed(bundle: Bundle, only: list[str], without: list[str], nccl_version: str) -> Bundle:
    """The bundle, to be judged by some of its stages alone and by another NCCL where the user names them."""
    import msgspec

    plan = msgspec.structs.replace(bundle.plan, nccl_version=nccl_version or bundle.plan.nccl_version)
    if only or without:
        wanted = _stages(only, without, quick=False)
        if only and (absent := [name for name in wanted if name not in plan.stages]):
            _tell.stop(f"the bundle holds no stage {absent[0]!r}; it holds: {', '.join(plan.stages)}")
        plan = msgspec.structs.replace(plan, stages=tuple(name for name in plan.stages if name in wanted))
    return msgspec.structs.replace(bundle, plan=plan)


def _stages(only: list[str], without: list[str], quick: bool) -> tuple[str, ...]:
    from nccl_doctor.rules.engine import STAGES

    only, without = ([name.strip() for word in words for name in word.split(",")] for words in (only, without))
    for name in [*only, *without]:
        if name not in STAGES:
            _tell.stop(f"no stage {name!r}; the stages are: {', '.join(STAGES)}")
    left_out = {*without, *(("collectives",) if quick and "collectives" not in only else ())}
    stages = tuple(name for name in STAGES if (not only or name in only) and name not in left_out)
    if not stages:
        _tell.stop("--stage and --skip leave no stage to run")
    return stages


def _fit(rows: Overrides | None) -> Callable[[Bundle], list[str]]:
    """Which hosts the collectives run on: one that is known to break the job would only keep all others waiting."""
    from nccl_doctor.rules.gate import BAD, decide_hosts
    from nccl_doctor.rules.judge import judge

    def fit(so_far: Bundle) -> list[str]:
        if not so_far.plan.stages:
            return [facts.name for facts in so_far.hosts]
        return [item.host for item in decide_hosts(judge(so_far, rows)) if item.state != BAD]

    return fit


def _conclude(
    bundle: Bundle,
    rows: Overrides | None,
    format: str,
    save: Path | None,
    history: Path | None,
    strict: bool,
    verbose: bool,
) -> None:
    from nccl_doctor.rules.judge import judge, to_json

    saved = _judging.save_bundle(bundle, save)
    report: Report = judge(bundle, rows)
    kept = _judging.keep(history, bundle, report, "check") and (saved or save is None)
    code = report.exit_code(strict=strict)
    _hosts.tell_interrupted(bundle)
    if bundle.interrupted:
        code = ExitCode.INTERRUPTED
    if not kept and code is ExitCode.HEALTHY:
        code = ExitCode.INTERNAL_ERROR  # asked to keep it and could not: not a success
    if format == "json":
        _tell.print_json(to_json(report))
    else:
        from nccl_doctor.report.console import render
        from nccl_doctor.report.terminal import stdout_console

        console = stdout_console()
        render(report, console, verbose=verbose, saved=saved, exit_code=code)
        if verbose:
            from nccl_doctor.report.differences import render as render_differences

            render_differences(bundle, console)
    raise typer.Exit(code)
