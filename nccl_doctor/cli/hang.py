"""``nccl-doctor hang``: look at a job that runs now, and name the rank that the others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _judging, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode


@app.command(
    short_help="A job hangs now: which rank holds the others?",
    epilog=examples(
        {
            "hang": "this machine's job",
            "hang --hosts hostfile": "as the job's user or root",
            "hang -H gpu[01-64] --save hang.ndb": "keep what was seen",
            "hang --from hang.ndb --verbose": "judge it again, anywhere",
        },
        codes="11 a rank is to blame, 12 it stands and nobody stands out, 4 it moves or too little was seen, 3 no job",
    ),
)
def hang(
    context: typer.Context,
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    job: Annotated[str, typer.Option(metavar="ID", help="Which job, where several run on the hosts.")] = "",
    interval: Annotated[
        float,
        _options.time_option(
            "Time between the two looks at every rank: 0.5 to 60 seconds, or 1m.", least=0.5, most=60.0
        ),
    ] = _options.Seconds(3),
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Take Python stacks (py-spy, which pauses nothing).")
    ] = True,
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    deadline: _options.Deadline = _options.Seconds(120),
    format: _options.Format = "text",
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep all that was seen as a bundle.")] = None,
    from_: _options.Saved = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All evidence, and every rank's pid.")] = False,
) -> None:
    """Find the rank that holds a hanging job: states, stacks, connections, workers, NCCL's own counts, looked at twice.

    Without hosts, this machine is looked at. Reads only: no signal is sent, no process is paused.
    """
    import msgspec

    if save is not None:
        _inputs.check_writable(save, "--save", {"--hosts": hosts})
    if from_ is not None:
        if save:
            _tell.stop("--from judges a saved bundle: it takes no --save")
        bundle = _inputs.read_saved(context, from_, of="hang")
        bundle = msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, job=job))
    else:
        from nccl_doctor.collect.job import JobOptions
        from nccl_doctor.collect.run import CheckOptions
        from nccl_doctor.facts.model import Plan

        local = _hosts.is_this_machine(hosts, host_list, slurm)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        entries = _hosts.load_inventory(hosts, host_list, slurm).entries
        plan = Plan(stages=("job",), job=job)
        options = CheckOptions(plan, connect, deadline_s=deadline, job=JobOptions(interval, stacks))
        bundle = _hosts.collect_facts(entries, options)

    from nccl_doctor.rules.hang import examine, to_json

    saved = _judging.save_bundle(bundle, save)
    answer = examine(bundle)
    _hosts.tell_interrupted(bundle)
    code = ExitCode.INTERRUPTED if bundle.interrupted else answer.exit_code
    if format == "json":
        _tell.print_json(to_json(answer))
    else:
        from nccl_doctor.report.hang import render
        from nccl_doctor.report.terminal import stdout_console

        render(answer, stdout_console(), verbose=verbose, saved=saved, exit_code=code)
    raise typer.Exit(code)
