"""``nccl-doctor watch``: look at hosts again and again while a job runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _judging, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode


@app.command(
    short_help="A job runs: throttled GPUs, stragglers, leaks, silent hosts, as they come.",
    epilog=examples(
        {
            "watch --hosts hostfile": "until Ctrl-C",
            "watch --hosts hostfile --for 10m": "then a verdict",
            "watch -H gpu[01-64] --save night.ndb": "keep what was seen",
            "watch --from night.ndb --verbose": "judge it again, anywhere",
        },
        codes="0 nothing wrong was seen, 11 something was, 4 too little could be seen, 130 ended by Ctrl-C",
    ),
)
def watch(
    context: typer.Context,
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between the samples of a host: 0.5s to 10m.")] = "5s",
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90, 10m, 2h, 3d. [default: until Ctrl-C]")
    ] = "",
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    format: _options.Format = "text",
    thresholds: _options.Thresholds = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep what was seen, folded, as a bundle.")] = None,
    from_: _options.Saved = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for each GPU, all evidence and events.")
    ] = False,
) -> None:
    """Watch hosts while a job runs: GPUs, network, memory, ranks, the kernel log. At the end, what was wrong.

    Without hosts, this machine is watched. Reads only, over one open connection to each host; the table goes to stderr.
    """
    from nccl_doctor.agent.probes.watch import LONGEST_S

    every_s = _options.seconds(every, "--every", "5s, from 0.5s to 10m", least=0.5, most=600.0)
    longest = f"90s, 10m or 2h, up to {LONGEST_S / 86400:.0f}d"
    for_s = _options.seconds(for_, "--for", longest, most=LONGEST_S) if for_ else None
    rows = _judging.load_thresholds(thresholds)
    if save is not None:
        _inputs.check_writable(save, "--save", {"--hosts": hosts, "--thresholds": thresholds})
    if from_ is not None:
        if save:
            _tell.stop("--from judges a saved bundle: it takes no --save")
        bundle = _inputs.read_saved(context, from_, of="watch")
    else:
        from nccl_doctor.collect.watch import WatchOptions
        from nccl_doctor.collect.watch import watch as watch_hosts
        from nccl_doctor.report.terminal import stderr_console
        from nccl_doctor.report.watch import LiveWatch

        local = _hosts.is_this_machine(hosts, host_list, slurm)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        entries = _hosts.load_inventory(hosts, host_list, slurm).entries
        with LiveWatch(stderr_console(), verbose) as shown:
            bundle = watch_hosts(entries, WatchOptions(connect, every_s, for_s), shown)

    from nccl_doctor.rules.watch import examine, to_json

    saved = _judging.save_bundle(bundle, save)
    answer = examine(bundle, rows)
    _hosts.tell_interrupted(bundle)
    code = ExitCode.INTERRUPTED if bundle.interrupted else answer.report.exit_code()
    if save is not None and not saved and code is ExitCode.HEALTHY:
        code = ExitCode.INTERNAL_ERROR  # asked to keep what was seen and could not: not a success
    if format == "json":
        _tell.print_json(to_json(answer, code))
    else:
        from nccl_doctor.report.terminal import stdout_console
        from nccl_doctor.report.watch import render

        render(answer, stdout_console(), verbose=verbose, saved=saved, exit_code=code)
    raise typer.Exit(code)
