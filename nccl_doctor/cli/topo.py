"""``nccl-doctor topo``: draw how GPUs and NICs hang together, and say what is uneven."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.facts.topology_matrix import Matrix

READ_LIMIT = 2 << 20  # bytes of a FILE that are looked at

Found = tuple[str, "Matrix", list[tuple[str, str]]]


@app.command(
    short_help="What can NCCL use between these GPUs and NICs?",
    epilog=examples(
        {
            "topo": "",
            "topo --hosts hostfile": "",
            "topo pasted.txt": "nvidia-smi topo -m of a ticket",
        },
        codes="0 shown, 4 cut off or not of all hosts, 3 no matrix",
    ),
)
def topo(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A saved bundle, or the output of `nvidia-smi topo -m` (or -mp, -p2p), or - for standard input.",
        ),
    ] = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    from_: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="The same FILE, as for check.")] = None,
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    deadline: _options.Deadline = _options.Seconds(90),
    format: _options.Format = "text",
) -> None:
    """Show the GPU and NIC topology: a matrix, what NCCL can use between each pair, and what is uneven.

    Without FILE, hosts or bundle, this machine is asked.
    """
    if file is not None and from_ is not None:
        _tell.stop("give FILE or --from, as both mean the same")
    source = str(from_) if from_ is not None else file
    if source is not None:
        _options.nothing_is_measured(context, f"{source} is read")
    if source is not None and not _is_bundle(source):
        _show(_from_file(source), {}, format, one_file=True)
        return
    if source is not None:
        bundle = _inputs.read_bundle(Path(source))
    else:
        from nccl_doctor.collect.run import CheckOptions
        from nccl_doctor.facts.model import Plan

        local = _hosts.is_this_machine(hosts, host_list, slurm)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        entries = _hosts.load_inventory(hosts, host_list, slurm).entries
        options = CheckOptions(plan=Plan(stages=("gpu", "topology")), connect=connect, deadline_s=deadline)
        bundle = _hosts.collect_all(entries, options)
    _show(*_from_bundle(bundle), format, one_file=False)


def _is_bundle(source: str) -> bool:
    """Whether this is no pasted matrix: a bundle is gzip. What cannot be read is taken for a matrix, which then says so."""
    try:
        with Path(source).open("rb") as stream:
            return stream.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def _from_file(file: str) -> list[Found]:
    from nccl_doctor.facts import topology_matrix

    try:
        if file == "-":
            data = sys.stdin.buffer.read(READ_LIMIT)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(READ_LIMIT)
    except OSError as error:
        _tell.stop(f"{file}: {error.strerror or error}")
    try:
        matrix = topology_matrix.parse(data.decode("utf-8", "replace"))
    except topology_matrix.TopologyError as error:
        _tell.stop(f"{'standard input' if file == '-' else file}: {error}", ExitCode.NOTHING_CHECKED)
    return [("standard input" if file == "-" else file, matrix, [])]


def _from_bundle(bundle: Bundle) -> tuple[list[Found], dict[str, str]]:
    """The hosts whose matrix is there, and host -> why not for the others."""
    from nccl_doctor.rules import topology_view
    from nccl_doctor.rules.engine import Host, MissingFact, SkipRule
    from nccl_doctor.rules.gpudirect import sentences

    found: list[Found] = []
    missing: dict[str, str] = {}
    for facts in bundle.hosts:
        host = Host(facts)
        if facts.reach.outcome.value != "ok":
            missing[facts.name] = f"not reached: {facts.reach.why}"
            continue
        try:
            matrix = topology_view.matrix_of(host)
        except (MissingFact, SkipRule) as reason:
            missing[facts.name] = str(reason)
            continue
        found.append((facts.name, matrix, [*topology_view.witnesses(host, matrix), *sentences(host, matrix)]))
    return found, missing


def _alike(found: list[Found]) -> list[tuple[list[str], Matrix, list[tuple[str, str]]]]:
    """Hosts whose matrix and facts are equal are shown as one."""
    groups: list[tuple[list[str], Matrix, list[tuple[str, str]]]] = []
    for title, matrix, facts in found:
        same = next((group for group in groups if group[1] == matrix and group[2] == facts), None)
        if same:
            same[0].append(title)
        else:
            groups.append(([title], matrix, facts))
    return groups


def _show(found: list[Found], missing: dict[str, str], format: str, one_file: bool) -> None:
    from nccl_doctor.facts.fold import fold
    from nccl_doctor.report import topology
    from nccl_doctor.report.safe_text import visible
    from nccl_doctor.report.terminal import stdout_console

    if format == "json":
        documents = {title: topology.to_json(matrix) for title, matrix, _ in found}
        data: object = next(iter(documents.values())) if one_file else {"hosts": documents, "missing": missing}
        typer.echo(json.dumps(data, indent=2, sort_keys=True))
    else:
        console = stdout_console()
        for index, (titles, matrix, facts) in enumerate(_alike(found)):
            if index:
                console.print()
            title = titles[0] if one_file else fold(titles)
            topology.render(matrix, console, title=title, facts=facts)
        for why in dict.fromkeys(missing.values()):
            hosts = fold(host for host, reason in missing.items() if reason == why)
            typer.echo(f"{visible(hosts)}: no topology: {visible(why)}", err=True)
    if not found:
        raise typer.Exit(ExitCode.NOTHING_CHECKED)
    if missing or any(matrix.truncated for _, matrix, _ in found):
        raise typer.Exit(ExitCode.INCOMPLETE)
