"""``nccl-doctor bench``: collective benchmarks with a proved path and a verdict."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import _hosts, _inputs, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.bench.fleet import Fleet
    from nccl_doctor.bench.model import BenchPlan
    from nccl_doctor.bench.outcome import Asked, Outcome

FORMATS = ("text", "json", "csv", "nccl-tests")
SIZES = "1K:64M:x4"


def _dtype(word: str) -> str:
    from nccl_doctor.bench.model import DTYPES, full_dtype

    return _options.one_of(*DTYPES)(full_dtype(word))


def _operation(word: str) -> str:
    from nccl_doctor.bench.model import OPS

    return _options.one_of(*OPS)(word)


@app.command(
    short_help="How fast are the collectives, over which path, and is that good?",
    epilog=examples(
        {
            "bench allreduce --hosts hostfile --sizes 1M:8G": "",
            "bench all --hosts hostfile --baseline good.json": "",
            "bench gemm -H gpu[01-64]": "which GPU computes slowly?",
        },
        codes="0 measured, 11 failed, incomplete or wrong (see --fail-on), 3 nothing measured",
    ),
)
def bench(
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="allreduce, allgather, reducescatter, broadcast, reduce, alltoall, sendrecv, gather, scatter, all, "
            "or gemm (compute speed); several with commas.",
        ),
    ],
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="A:B[:xN|:+N]", help=f"Sizes in bytes; K, M, G, T are 1024-based; A:B doubles [default: {SIZES}]."
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            parser=_dtype, metavar="TYPE", help="float32, float64, float16, bfloat16, int8, uint8, int32, int64."
        ),
    ] = "float32",
    op: Annotated[
        str, typer.Option(parser=_operation, metavar="OP", help="Reduction: sum, prod, min, max, avg.")
    ] = "sum",
    backend: _options.Backend = "auto",
    gpus_per_host: Annotated[int, _options.count("Ranks per host with nccl [default: slots, or all GPUs].")] = 0,
    ranks_per_host: Annotated[int, _options.count("Ranks per host with gloo [default: slots, or 1; locally 2].")] = 0,
    iters: Annotated[int, _options.count("Timed calls per size [default: by the budget].", most=1000000)] = 0,
    warmup: Annotated[int, typer.Option(metavar="N", min=1, max=10000, help="Calls before timing.")] = 3,
    time_budget: Annotated[
        float, _options.time_option("Time to aim at for all sizes, in seconds or such as 2m.", least=0.1)
    ] = _options.Seconds(30),
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare results with the right answer.")] = True,
    in_place: Annotated[bool, typer.Option("--in-place", help="Measure in place.")] = False,
    out_of_place: Annotated[bool, typer.Option("--out-of-place", help="Measure out of place.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Measure both ways.")] = False,
    cuda_graph: Annotated[bool, typer.Option("--cuda-graph", help="Replay the call from a CUDA graph.")] = False,
    gemm_edge: Annotated[
        int, _options.count("gemm: edge of the square matrices [default: 1024 on CPU, 8192 on GPU].", most=65536)
    ] = 0,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment of the ranks (repeat).")
    ] = None,
    same_gpu: Annotated[
        bool, typer.Option("--test-same-gpu", hidden=True, help="Test device: several ranks on one GPU (NCCL_HOSTID).")
    ] = False,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Measure although other processes use the GPUs.")
    ] = False,
    master: _options.RankZero = "",
    master_port: Annotated[
        int, _options.count("Port of the store [default: a free one].", metavar="PORT", most=65535)
    ] = 0,
    timeout: _options.StepLimit = _options.Seconds(60),
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    format: Annotated[str, _options.format_choice(*FORMATS, help="What standard output gets.")] = "text",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|FILE.html", help="Plot of bandwidth over size.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep this run, as a baseline for later ones.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with a saved run: slower is exit code 11.")
    ] = None,
    min_busbw: Annotated[
        float,
        typer.Option(show_default=False, metavar="GB/S", help="Less at the largest size is slow, and exit code 11."),
    ] = 0.0,
    fail_on: Annotated[
        str | None,
        _options.choice(
            "slow",
            "never",
            help="slow: exit 11 if slow or with any finding, 4 if it cannot be judged. "
            "[default: only by --min-busbw or --baseline]",
        ),
    ] = None,
    verbose: _options.Verbose = False,
) -> None:
    """Measure collectives over torch.distributed, prove which path the data took, and judge the result.

    Without hosts, this machine. Inside torchrun, srun or mpirun, the ranks that these started. Wrong answers and
    failures give exit code 11, whatever --fail-on says.
    """
    from nccl_doctor.bench.collectives import GEMM
    from nccl_doctor.bench.fleet import Fleet
    from nccl_doctor.bench.model import BenchPlan
    from nccl_doctor.bench.outcome import Asked

    _options.check_bandwidth("--min-busbw", min_busbw, least=0.0)
    telling = _Telling(format, save, plot, fail_on, verbose, hosts)
    names, wanted = _what(collective, sizes, dtype, format)
    if gemm_edge and GEMM not in names:
        _tell.stop("--gemm-edge is for gemm; of collectives --sizes tells the sizes")
    if plot is not None and not wanted:
        _tell.stop("--plot draws bandwidth over size, and gemm has neither")
    if not wanted and (min_busbw or baseline):
        option = "--min-busbw" if min_busbw else "--baseline"
        _tell.stop(f"{option} is for collectives: of gemm nothing would be compared")
    backend, ranks = _ranks(backend, gpus_per_host, ranks_per_host)
    plan = BenchPlan(
        collectives=names,
        sizes=wanted,
        dtype=dtype,
        op=op,
        backend=backend,
        modes=_modes(in_place, out_of_place, both, format),
        ranks_per_host=ranks,
        warmup=warmup,
        iters=iters,
        budget_s=time_budget,
        limit_s=timeout,
        check=check,
        cuda_graph=cuda_graph,
        gemm=(gemm_edge or -1) if GEMM in names else 0,
        python=python,
        env=_environment(env or []),
        env_per_rank={"NCCL_HOSTID": "rank{rank}"} if same_gpu else {},
        master_port=master_port,
        same_gpu=same_gpu,
        links=8 << 20 if names != (GEMM,) else 0,
    )
    telling.before = None if baseline is None else _inputs.saved_run(baseline, "--baseline ")
    asked = Asked(_command(), min_busbw, telling.before)
    local = _hosts.is_this_machine(hosts, host_list, slurm)
    elsewhere = {"--master": master, "--master-port": master_port, "--python": python, "--env-setup": env_setup}
    _inside_a_job(plan, asked, telling, local, [option for option, given in elsewhere.items() if given])
    connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
    entries = _hosts.load_inventory(hosts, host_list, slurm).entries
    outcome = _over_sessions(Fleet(entries, connect, master, local, allow_busy), plan, asked)
    raise typer.Exit(telling.tell(outcome))


def _what(collective: str, sizes: str | None, dtype: str, format: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What is measured, at which sizes in bytes."""
    from nccl_doctor.bench.collectives import GEMM, UnknownCollective, parse_collectives
    from nccl_doctor.bench.sizes import SizeError, parse_sizes

    try:
        names = parse_collectives(collective)
        wanted = parse_sizes(SIZES if sizes is None else sizes)
    except (UnknownCollective, SizeError) as error:
        _tell.stop(str(error))
    if GEMM in names and format in ("csv", "nccl-tests"):
        _tell.stop(f"--format {format} has no words for gemm: text and json do")
    if GEMM in names and not dtype.startswith(("float", "bfloat")):
        _tell.stop(f"--dtype {dtype}: gemm measures matrix products of floating-point numbers")
    if names != (GEMM,):
        return names, wanted
    if sizes:
        _tell.stop("--sizes is for collectives; gemm takes --gemm-edge, the edge of its square matrices")
    return names, ()


def _ranks(backend: str, gpus_per_host: int, ranks_per_host: int) -> tuple[str, int]:
    """The backend, and the ranks of a host (0: by default)."""
    if not gpus_per_host:
        return backend, ranks_per_host
    if ranks_per_host:
        _tell.stop("--gpus-per-host is for nccl, --ranks-per-host for gloo: give one of them")
    if backend == "gloo":
        _tell.stop("--gpus-per-host is for nccl; with --backend gloo give --ranks-per-host")
    return "nccl", gpus_per_host


def _modes(in_place: bool, out_of_place: bool, both: bool, format: str) -> tuple[str, ...]:
    """The ways that were asked for; none: each collective's native one."""
    modes = tuple(mode for mode, on in (("out", out_of_place or both), ("in", in_place or both)) if on)
    return modes or (("out", "in") if format == "nccl-tests" else ())  # scripts expect both blocks


def _inside_a_job(plan: BenchPlan, asked: Asked, telling: _Telling, local: bool, elsewhere: list[str]) -> None:
    """Where torchrun, srun or mpirun started this process, be one of its ranks, to the process's end."""
    from nccl_doctor.bench import in_job

    identity = in_job.identity_or_stop(_tell.stop)
    if identity is None:
        return
    if not local:
        _tell.stop(f"hosts were given, but {identity.launcher} has already started this as rank {identity.rank}")
    if elsewhere:
        _tell.stop(
            f"{', '.join(elsewhere)}: that is for {identity.launcher} to say, which has already started this "
            "(MASTER_ADDR and MASTER_PORT in its environment are where the ranks meet)"
        )
    telling.plain = True
    try:
        in_job.run(identity, plan, asked, telling.tell)
    except ValueError as error:
        _tell.stop(str(error))


def _environment(pairs: list[str]) -> dict[str, str]:
    import re

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) or "\0" in value:
            _tell.stop(f"--env {pair!r}: expected NAME=VALUE")
        found[name] = value
    for doubt in _doubts(found) if found else ():
        _tell.say(f"--env: {doubt}")
    return found


def _doubts(env: dict[str, str]) -> Iterator[str]:
    """What of it changes nothing or ends the job, and what hides the path. It is run all the same: it was asked for."""
    from nccl_doctor.env.assignments import Assignment, How
    from nccl_doctor.env.lint import lint
    from nccl_doctor.findings.model import Severity

    found = lint([Assignment(name, value, how=How.PROCESS) for name, value in env.items()])
    yield from (item.title for item in found if item.severity is Severity.FAIL)
    level = env.get("NCCL_DEBUG", "INFO")
    hides = [] if level.upper() in ("INFO", "TRACE") else [f"NCCL_DEBUG={level}"]
    hides += [name for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS") if name in env]
    if hides:
        yield f"with {', '.join(hides)} the path cannot be proved, which is read from NCCL's whole log (INFO)"


def _command() -> str:
    return shlex.join(["nccl-doctor", *sys.argv[1:]])


def _over_sessions(fleet: Fleet, plan: BenchPlan, asked: Asked) -> Outcome:
    from nccl_doctor.bench.fleet import Refused, run_fleet
    from nccl_doctor.report.bench_progress import BenchProgress
    from nccl_doctor.report.terminal import stderr_console

    console = stderr_console()
    try:
        return run_fleet(
            fleet,
            plan,
            asked=asked,
            progress=lambda world, collector, total: BenchProgress(console, world, collector, total),
            notice=console.print,
        )
    except Refused as refusal:
        _tell.stop(str(refusal), refusal.code)


@dataclasses.dataclass
class _Telling:
    """Where the outcome goes: standard output, and the files that were asked for."""

    format: str
    save: Path | None
    plot: Path | None
    fail_on: str | None
    verbose: bool = False
    hosts: str | None = None  # the hostfile
    before: Outcome | None = None
    plain: bool = False  # inside a job: what looks like a terminal may be none

    def __post_init__(self) -> None:
        if self.plot is not None and self.plot.suffix.lower() not in (".svg", ".html"):
            _tell.stop(f"--plot {self.plot}: the name must end in .svg or .html")
        for path, option in ((self.plot, "--plot"), (self.save, "--save")):
            if path is not None:
                _inputs.check_writable(
                    path, option, {"--hosts": self.hosts}
                )  # a baseline may be replaced by what is kept

    def tell(self, outcome: Outcome) -> ExitCode:
        """Keep it, plot it, print it; the exit code. A file that cannot be written does not keep the result back."""
        from nccl_doctor.bench.outcome import write
        from nccl_doctor.report.bench_plot import write_plot

        code = outcome.exit_code(self.fail_on, compared=self.before is not None)
        runs = [("this run", outcome)] + ([("baseline", self.before)] if self.before else [])
        not_saved = _trouble("--save", self.save, lambda path: write(outcome, path))
        not_plotted = _trouble("--plot", self.plot, lambda path: write_plot(path, runs))
        if (not_saved or not_plotted) and code is ExitCode.HEALTHY:
            code = ExitCode.INTERNAL_ERROR
        self._print(outcome, str(self.save) if self.save and not not_saved else "", code)
        sys.stdout.flush()
        for text in filter(None, (not_saved, not_plotted)):  # below the table, where it is read
            _tell.say(text)
        return code

    def _print(self, outcome: Outcome, saved: str, code: ExitCode) -> None:
        if self.format == "text":
            from nccl_doctor.report.bench_console import render
            from nccl_doctor.report.terminal import stdout_console

            render(outcome, stdout_console(self.plain), verbose=self.verbose, saved=saved, exit_code=code)
        elif self.format == "json":
            from nccl_doctor.bench.outcome import encode

            _tell.print_json(encode(outcome))
        else:
            from nccl_doctor.report.bench_console import verdict_lines
            from nccl_doctor.report.bench_formats import csv_text, nccl_tests

            sys.stdout.write(csv_text(outcome) if self.format == "csv" else nccl_tests(outcome))
            for told in (*(f"{item.id}: {item.title}" for item in outcome.findings), *verdict_lines(outcome)):
                _tell.say(str(told))  # these formats have no words for it


def _trouble(option: str, path: Path | None, write: Callable[[Path], None]) -> str:
    """Why the file is not written, or empty."""
    try:
        if path is not None:
            write(path)
    except OSError as error:
        return f"{option} {path}: {error.strerror or error}"
    return ""
