"""``nccl-doctor run``: follow a command, look at it where it falls silent, explain it where it fails."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import _hosts, app, examples


@app.command(
    short_help="Run a job: look at it where it hangs, explain it if it fails.",
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
    hosts: _hosts.HostsFile = None,
    host_list: _hosts.HostList = None,
    slurm: _hosts.Slurm = False,
    silence: _hosts.Silence = "10m",
    on_hang: _hosts.OnHang = "tell",
    keep: _hosts.KeepIn = None,
    transport: _hosts.Transport = "ssh",
    python: _hosts.Python = "",
    env_setup: _hosts.EnvSetup = "",
    connect_timeout: _hosts.ConnectTimeout = 10.0,
    fan_out: _hosts.FanOut = 64,
    ssh_config: _hosts.SshConfig = None,
) -> None:
    """Run a job, its output unchanged, and say which rank holds it where it falls silent, and why it failed if it does.

    Nothing is measured before: preflight does that. Without hosts, ranks are looked for on this machine.
    """
    from nccl_doctor.cli._guard import following
    from nccl_doctor.cli._launch import launch

    _hosts.check_program(command)
    local = _hosts.is_this_machine(hosts, host_list, slurm)
    connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
    followed = following(silence, on_hang, keep, connect)
    inventory = _hosts.load_inventory(hosts, host_list, slurm)
    chosen = tuple(entry.name for entry in inventory.entries)
    raise typer.Exit(launch(command, (), inventory, chosen, followed).status)
