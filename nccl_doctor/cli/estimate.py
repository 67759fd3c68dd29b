"""``nccl-doctor estimate``: what communication costs a training step on so many GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor import __version__
from nccl_doctor.cli import _inputs, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.bench.estimate import Estimate, Step
    from nccl_doctor.bench.outcome import Outcome
    from nccl_doctor.bench.parallelism import Model, Way
    from nccl_doctor.bench.rates import Figures

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@app.command(
    short_help="What will communication cost a training step on 16, 32, 64 GPUs?",
    epilog=examples(
        {
            "estimate ddp --params 7B --dtype float32 --gpus 64 --from a.json": "",
            "docs estimate": "what it counts, and how sure it is",
        },
        codes="0 estimated, 4 only in part, 3 no rate is known",
    ),
)
def estimate(
    parallelism: Annotated[
        str, typer.Argument(metavar="WAY", help="ddp, fsdp, or DeepSpeed's zero1, zero2, zero3.", show_default=False)
    ] = "",
    params: Annotated[str, typer.Option(metavar="N", help="Parameters that are trained, such as 7B or 350M.")] = "",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE", help="As sent: float32, bfloat16, float16, float64. DDP under autocast sends float32."
        ),
    ] = "",
    gpus: Annotated[str, typer.Option(metavar="N,N,...", help="For how many GPUs, one rank each: 8,16,32.")] = "",
    gpus_per_host: Annotated[int, _options.count("GPUs of a host [default: as in the runs].")] = 0,
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME@GPUS",
            help="A measured step: 850ms@8 (@1: computation alone). Further ones (repeat) are compared.",
        ),
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="What bench --save kept (repeat: on one host, on several)."),
    ] = None,
    busbw: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Bus bandwidth of collectives across hosts.")
    ] = None,
    busbw_in_host: Annotated[float | None, typer.Option(metavar="GB/S", help="Bus bandwidth within a host.")] = None,
    latency: Annotated[
        str, typer.Option(metavar="TIME", help="With them: what a call costs beside its bytes, such as 40us.")
    ] = "",
    grad_dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type in which gradients are sent [default: --dtype].")
    ] = "",
    layers: Annotated[int, _options.count("fsdp, zero3: modules that are gathered one at a time.", most=100000)] = 0,
    accumulate: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=100000, help="Micro-batches of a step (gradient accumulation, under no_sync)."
        ),
    ] = 1,
    strong: Annotated[
        bool, typer.Option("--strong", help="Divide a step's work among the GPUs; else each GPU keeps its own.")
    ] = False,
    format: _options.Format = "text",
) -> None:
    """Estimate what communication costs a step: bytes, time, share of the step, scaling efficiency, and what it takes to
    meet the targets (20 % of the step at most, 80 % efficiency at least).

    Rates come from saved runs of bench, else from --busbw and --latency; without any there is no estimate. Shares and
    efficiencies need --step.
    """
    from nccl_doctor.bench import estimate as estimates
    from nccl_doctor.bench.model import full_dtype
    from nccl_doctor.bench.parallelism import ways
    from nccl_doctor.bench.rates import Machines, common_gpus_per_host

    way = _way(parallelism) if parallelism else None
    runs = tuple((str(path), _run(path)) for path in from_ or [])
    per_host = gpus_per_host or common_gpus_per_host(runs)
    needed = {
        f"WAY ({', '.join(ways())})": parallelism,
        "--params N": params,
        "--dtype TYPE": dtype,
        "--gpus N,N,...": gpus,
        "--gpus-per-host N (it decides which link they use)": per_host,
        "--layers N (how many modules are gathered, one at a time)": layers or way is None or not way.by_layer,
    }
    if missing := [words for words, given in needed.items() if not given]:
        _tell.stop(f"estimate needs {', '.join(missing)}")
    assert way
    model = _model(way, params, full_dtype(dtype), full_dtype(grad_dtype or dtype), accumulate, layers)
    figures = _figures(busbw_in_host, busbw, latency)
    steps = _steps(step or [], per_host)
    rows = {*_gpus(gpus, per_host), *(item.gpus for item in steps[1:])}  # the others are there to be compared
    question = estimates.Question(way.way, model, tuple(sorted(rows)), per_host, steps, strong)
    found = estimates.estimate(question, way, Machines(per_host, runs, figures), __version__)
    code = exit_code(found)
    if format == "json":
        from nccl_doctor.facts.files import printed_json

        _tell.print_json(printed_json(found))
    else:
        from nccl_doctor.report.estimate import render
        from nccl_doctor.report.terminal import stdout_console

        render(found, stdout_console(), code)
    raise typer.Exit(code)


def exit_code(found: Estimate) -> ExitCode:
    """Whether all that was asked for could be told; targets that are missed are no failure."""
    known = [not row.trouble for row in found.rows]
    if not any(known):
        return ExitCode.NOTHING_CHECKED
    return ExitCode.HEALTHY if all(known) and not found.trouble else ExitCode.INCOMPLETE


def _way(name: str) -> Way:
    from nccl_doctor.bench.parallelism import REFUSED, ways

    word = name.lower()
    if word in REFUSED:
        _tell.stop(f"{name}: cannot be estimated: {REFUSED[word]}")
    if word not in ways():
        _tell.stop(f"no way of parallelism {name!r}; there are {', '.join(ways())}")
    return ways()[word]


def _model(way: Way, params: str, dtype: str, grad_dtype: str, accumulate: int, layers: int) -> Model:
    """What is trained, with only those options that mean something in this way of parallelism."""
    from nccl_doctor.bench.parallelism import DTYPE_BYTES, Model

    for option, word in (("--dtype", dtype), ("--grad-dtype", grad_dtype)):
        if word not in DTYPE_BYTES:
            _tell.stop(f"{option} {word!r}: expected one of {', '.join(DTYPE_BYTES)}")
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,12})?(?:e[0-9]{1,2})?)([KMBT]?)", params.strip(), re.ASCII | re.IGNORECASE
    )
    count = round(float(match.group(1)) * _DECIMAL[match.group(2).upper()]) if match else 0
    if not 1 <= count <= 10**15:
        _tell.stop(f"--params {params!r}: expected a number of parameters, such as 7B, 350M or 124439808")
    if layers and not way.by_layer:
        _tell.stop(f"{way.way} sends buckets: --layers would change nothing")
    if layers > count:
        _tell.stop(f"--layers {layers}: more than there are parameters")
    return Model(count, dtype, grad_dtype, accumulate, layers)


def _run(path: Path) -> Outcome:
    from nccl_doctor.bench.rates import trouble

    run = _inputs.saved_run(path, "--from ")
    if why := trouble(run):
        _tell.stop(f"--from {path}: says nothing of rates: {why}")
    return run


def _figures(in_host: float | None, across: float | None, latency: str) -> Figures:
    from nccl_doctor.bench.rates import Figures

    for option, value in (("--busbw", across), ("--busbw-in-host", in_host)):
        if value is not None:
            _options.check_bandwidth(option, value)
    if (in_host is None and across is None) != (not latency):
        _tell.stop(
            "--busbw or --busbw-in-host and --latency go together: what a call costs is what nccl-tests takes for its "
            "smallest sizes"
        )
    return Figures(in_host, across, _seconds("--latency", latency) * 1e6 if latency else 0.0)


def _seconds(option: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *(us|ms|s)", text.strip(), re.ASCII)
    if not match:
        _tell.stop(f"{option} {text!r}: expected a time with its unit, such as 850ms, 1.2s or 40us")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _gpus(text: str, per_host: int) -> list[int]:
    said, expected = f"--gpus {text!r}", "numbers with commas, such as 8,16,32"
    return [_count(said, part, expected, per_host) for part in text.split(",")]


def _steps(texts: list[str], per_host: int) -> tuple[Step, ...]:
    from nccl_doctor.bench.estimate import Step

    found = []
    for text in texts:
        time, _, gpus = text.partition("@")
        seconds = _seconds("--step", time) or _tell.stop(f"--step {text!r}: a step takes more than no time")
        found.append(Step(seconds, _count(f"--step {text!r}", gpus, "TIME@GPUS, such as 850ms@8", per_host)))
    if len({item.gpus for item in found}) < len(found):
        _tell.stop("--step: two steps of the same number of GPUs; give one")
    return tuple(found)


def _count(said: str, text: str, expected: str, per_host: int) -> int:
    """A number of GPUs: of one host, or of whole hosts."""
    if not re.fullmatch("[1-9][0-9]{0,6}", text.strip(), re.ASCII):
        _tell.stop(f"{said}: expected {expected}")
    if int(text) > per_host and int(text) % per_host:
        _tell.stop(f"{said}: {int(text)} GPUs are not whole hosts of {per_host}")
    return int(text)
