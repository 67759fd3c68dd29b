"""``nccl-doctor run``: follow a command, look at it where it falls silent, explain it where it fails."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _options, app, examples


@app.command(
    short_help="Run a job: look at it where it hangs, explain it if it fails.",
    context_settings=_options.OF_A_COMMAND,
    epilog=examples(
        {
            "run -- torchrun --nproc-per-node 8 train.py": "this machine",
            "run --slurm --keep failed -- srun python train.py": "",
            "run --silence 5m --on-hang end -- torchrun train.py": "",
        },
        codes="COMMAND's own; 11 or 12 where it hung and --on-hang end ended it",
    ),
)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND ...", help="Run this, and pass on its exit code.")
    ],
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    silence: _options.Silence = "10m",
    on_hang: _options.OnHang = "tell",
    keep: _options.KeepIn = None,
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
) -> None:
    """Run a job, its output unchanged, and say which rank holds it where it falls silent, and why it failed if it does.

    Nothing is measured before: preflight does that. Without hosts, ranks are looked for on this machine.
    """
    from nccl_doctor.cli._guard import following
    from nccl_doctor.cli._launch import launch

    _inputs.check_program(command)
    local = _hosts.is_this_machine(hosts, host_list, slurm)
    connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
    followed = following(silence, on_hang, keep, connect)
    inventory = _hosts.load_inventory(hosts, host_list, slurm)
    chosen = tuple(entry.name for entry in inventory.entries)
    raise typer.Exit(launch(command, (), inventory, chosen, followed).status)
