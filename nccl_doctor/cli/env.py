"""``nccl-doctor env``: what a variable does, what is wrong with those that are set, which ones these hosts need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from nccl_doctor.cli import _hosts, _inputs, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.env.examine import Examination
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.inventory import Inventory
    from nccl_doctor.transport.base import ConnectOptions

env = typer.Typer(
    name="env",
    help="NCCL and PyTorch environment variables: what each does, what is wrong with those set, which ones are needed.",
    short_help="Which NCCL variables do nothing, do harm, or are needed?",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(env)

# What lint and a recommendation are drawn from.
LINT_STAGES = ("interfaces", "software", "infiniband")
RECOMMEND_STAGES = ("connectivity", "interfaces", "system", "software", "infiniband")


def _release_option(option: str, of: str) -> Any:
    told = f"Judge for this {of} release [default: the newest known]."
    return typer.Option(option, parser=_options.release, metavar="X.Y.Z", help=told)


NcclVersion = Annotated[str, _release_option("--nccl-version", "NCCL")]
TorchVersion = Annotated[str, _release_option("--torch-version", "PyTorch")]
SavedBundle = Annotated[
    Path | None, typer.Option("--from", metavar="BUNDLE", help="A bundle saved by check, instead of hosts.")
]


def _saved(context: typer.Context, path: Path, nccl_version: str) -> Bundle:
    """A saved run, to be judged for this NCCL release where one is named."""
    saved = _inputs.read_saved(context, path)
    plan = msgspec.structs.replace(saved.plan, nccl_version=nccl_version or saved.plan.nccl_version)
    return msgspec.structs.replace(saved, plan=plan)


def _collected(
    inventory: Inventory, connect: ConnectOptions, stages: tuple[str, ...], nccl_version: str, deadline: float
) -> Bundle:
    """What these hosts tell in these stages."""
    from nccl_doctor.collect.run import CheckOptions
    from nccl_doctor.facts.model import Plan

    entries = inventory.entries
    plan = Plan(stages=stages, master=entries[0].name if entries else "", quick=True, nccl_version=nccl_version)
    return _hosts.collect_all(entries, CheckOptions(plan=plan, connect=connect, deadline_s=deadline))


@env.command(short_help="What does this variable do, in which versions?")
def show(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="One or more variables.")],
    nccl_version: NcclVersion = "",
    torch_version: TorchVersion = "",
    format: _options.Format = "text",
) -> None:
    """What a variable does: versions, values, default, when to set it, when never. Exit status 0 if it is known."""
    from nccl_doctor.env import knowledge
    from nccl_doctor.report.env import WIDTH, variable

    answers = [knowledge.lookup(_name_in(said), nccl_version, torch_version) for said in names]
    if format == "json":
        pages = [variable.answer_json(answer) for answer in answers]
        typer.echo(json.dumps(pages[0] if len(pages) == 1 else pages, indent=2))
    else:
        typer.echo("\n".join(variable.answer_text(answer, _tell.columns(WIDTH)) for answer in answers), nl=False)
    if any(answer.status is knowledge.Status.UNKNOWN for answer in answers):
        raise typer.Exit(ExitCode.USAGE)


def _name_in(said: str) -> str:
    """The variable in ``NAME``, ``$NAME``, ``NAME=value`` or ``export NAME=value``."""
    words = said.partition("=")[0].split()
    name = words[-1].strip("${}'\"") if words else ""
    if not name:
        _tell.stop(f"{said!r} names no variable")
    return name


@env.command(
    short_help="Which of the variables that are set do nothing, or harm?",
    epilog=examples(
        {
            "env lint": "what is set here",
            "env lint train.sbatch --fix": "shows the change",
            "env lint jobs/ --strict": "in CI",
        },
        codes="0 nothing wrong, 10 warnings with --strict, 11 errors",
    ),
)
def lint(
    context: typer.Context,
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="The same as --file.")] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help="Script, env file, nccl.conf, Dockerfile, YAML, Python; a directory or glob; - is standard input. Repeatable.",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="PATH", help="A log: what NCCL itself reported as set. Repeatable."),
    ] = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    bundle: SavedBundle = None,
    nccl_version: NcclVersion = "",
    torch_version: TorchVersion = "",
    fix: Annotated[bool, typer.Option("--fix", help="Show what would be changed, as a unified diff.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --fix: write the corrected file beside it, as NAME.fixed.")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="With --fix: change the files themselves.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 10 where there are only warnings.")] = False,
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    deadline: _options.Deadline = _options.Seconds(120),
    show_info: Annotated[
        bool, typer.Option("--info/--no-info", help="Show remarks that are only worth knowing.")
    ] = True,
    format: _options.Format = "text",
) -> None:
    """What is wrong with the variables that are set: in files, a log, hosts, or (without options) this environment."""
    from nccl_doctor.env import examine
    from nccl_doctor.report.env import WIDTH
    from nccl_doctor.report.env import lint as told

    files = [*(paths or ()), *(file or ())]
    _check_files(files, fix, write, in_place)
    facts = None
    if bundle is not None:
        facts = _saved(context, bundle, nccl_version)
    elif _hosts.is_this_machine(hosts, host_list, slurm):
        _options.nothing_is_measured(context, "only what is named here is read")
    else:
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, False, ssh_config)
        found = _hosts.load_inventory(hosts, host_list, slurm)
        facts = _collected(found, connect, LINT_STAGES, nccl_version, deadline)
    try:
        result = examine.examine(files, log or (), facts, nccl_version, torch_version)
    except ValueError as error:
        _tell.stop(str(error))
    if fix:
        _fix(result, ".fixed" if write else "" if in_place else None)
    elif format == "json":
        typer.echo(json.dumps(told.lint_json(result), indent=2))
    else:
        typer.echo(told.lint_text(result, show_info, _tell.columns(WIDTH), _tell.rows()), nl=False)
    raise typer.Exit(result.exit_code(strict))


def _check_files(files: list[str], fix: bool, write: bool, in_place: bool) -> None:
    """Stop at options of --fix that do not go together, and at a variable where a file is expected."""
    from nccl_doctor.env.assignments import is_ours
    from nccl_doctor.env.files import STANDARD_INPUT

    if (write or in_place) and not fix:
        _tell.stop("--write and --in-place need --fix")
    if write and in_place:
        _tell.stop("--write writes beside the file, --in-place changes it: choose one")
    if fix and not set(files) - {STANDARD_INPUT}:
        _tell.stop("--fix needs a file: only files can be corrected")
    for name in files:
        variable = name.partition("=")[0]
        if variable.isidentifier() and is_ours(variable) and not Path(name).exists():
            _tell.stop(f"{name} is no file; what one variable does: nccl-doctor env show {variable}")


def _fix(result: Examination, ending: str | None) -> None:
    """Show what would be changed, and write it to the file's name with this ending; without one, nowhere."""
    from nccl_doctor.env import fix as fixing
    from nccl_doctor.report.safe_text import visible

    for problem in result.problems:
        _tell.say(f"{problem.file} {problem.why}")
    changes = list(fixing.changes(result.remarks))
    if result.looked_at and not changes:
        _tell.say("nothing that --fix corrects")
    for change in changes:
        typer.echo(change.diff, nl=False)
        for kept in change.left:
            typer.echo(f"left for you: {visible(kept)}", err=True)
        if ending is None or not change.diff:
            continue
        path = f"{change.file}{ending}"
        try:
            fixing.write(change, path)
        except OSError as error:
            _tell.stop(f"{path}: {error.strerror or error}", ExitCode.INTERNAL_ERROR)
        typer.echo(f"wrote {path}", err=True)


ADVICE_FORMATS = ("text", "shell", "nccl.conf", "sbatch", "docker", "k8s", "json")


@env.command(short_help="Which variables do these hosts need?")
def recommend(
    context: typer.Context,
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    bundle: SavedBundle = None,
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            parser=_options.one_of("run", "hang"),
            metavar="run|hang",
            help="run: an ordinary job. hang: leave evidence behind when a job hangs.",
        ),
    ] = "run",
    format: Annotated[str, _options.format_choice(*ADVICE_FORMATS, help="How to print it.")] = "text",
    nccl_version: NcclVersion = "",
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    deadline: _options.Deadline = _options.Seconds(120),
) -> None:
    """The smallest set of variables these hosts need, a fact for each, and what is deliberately left alone."""
    from nccl_doctor.env import recommend as advising
    from nccl_doctor.env import recommend_model
    from nccl_doctor.env.hosts import not_reached
    from nccl_doctor.report.env import WIDTH
    from nccl_doctor.report.env import advice as told
    from nccl_doctor.rules import needs

    if bundle is not None:
        facts = _saved(context, bundle, nccl_version)
    else:
        local = _hosts.is_this_machine(hosts, host_list, slurm)
        connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
        found = _hosts.load_inventory(hosts, host_list, slurm)
        facts = _collected(found, connect, RECOMMEND_STAGES, nccl_version, deadline)
    known, attempts = needs.of_bundle(facts)
    if not known:
        _tell.stop("no host could be reached: there is nothing to recommend from", ExitCode.NOTHING_CHECKED)
    advice = advising.recommend(known, attempts, recommend_model.Purpose(purpose))
    absent = tuple(f"{host.name} {why}" for host in facts.hosts if (why := not_reached(host)))
    advice = msgspec.structs.replace(advice, unknown=(*absent, *advice.unknown))
    if format == "text":
        typer.echo(told.advice_text(advice, _tell.columns(WIDTH)), nl=False)
    else:
        typer.echo(told.ADVICE_FORMATS[format](advice), nl=False)
    for note in told.not_shown(advice, format):
        typer.echo(f"note: {note}", err=True)
    if advice.unknown:
        raise typer.Exit(ExitCode.INCOMPLETE)


@env.command(short_help="Does another setting make the collectives faster here?")
def tune(
    collective: Annotated[
        str,
        typer.Argument(metavar="COLLECTIVE", help="allreduce, allgather, reducescatter, ...; several with commas."),
    ],
    misplaced: _options.Misplaced = None,
    hosts: _options.HostsFile = None,
    host_list: _options.HostList = None,
    slurm: _options.Slurm = False,
    sizes: Annotated[str, typer.Option(metavar="A:B[:xN]", help="The sizes the job uses.")] = "1M:64M:x4",
    candidate: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="'NAME=VALUE ...'", help="A candidate: variables to set together. Repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=3, max=1000, help="Interleaved rounds.")] = 5,
    backend: _options.Backend = "auto",
    ranks_per_host: Annotated[int, _options.count("Ranks per host [default: as bench].")] = 0,
    time_budget: Annotated[
        float, _options.time_option("Per run, all sizes, in seconds or such as 1m.", least=0.1)
    ] = _options.Seconds(5),
    timeout: _options.StepLimit = _options.Seconds(60),
    allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Measure although others use the GPUs.")] = False,
    master: _options.RankZero = "",
    transport: _options.Transport = "ssh",
    python: _options.Python = "",
    env_setup: _options.EnvSetup = "",
    connect_timeout: _options.ConnectTimeout = _options.Seconds(10),
    fan_out: _options.FanOut = 64,
    ssh_config: _options.SshConfig = None,
    format: _options.Format = "text",
) -> None:
    """Measure candidate settings against the default, interleaved; recommend only what is better beyond the noise."""
    from nccl_doctor.bench import tune_fleet
    from nccl_doctor.bench.collectives import GEMM, UnknownCollective, parse_collectives
    from nccl_doctor.bench.fleet import Fleet, Refused
    from nccl_doctor.bench.model import BenchPlan
    from nccl_doctor.bench.sizes import SizeError, parse_sizes
    from nccl_doctor.bench.tune import Failed
    from nccl_doctor.report.env.tuning import tuning_json, tuning_text

    try:
        plan = BenchPlan(
            collectives=parse_collectives(collective),
            sizes=parse_sizes(sizes),
            backend=backend,
            ranks_per_host=ranks_per_host,
            budget_s=time_budget,
            limit_s=timeout,
            python=python,
            links=0,
        )
        candidates = tune_fleet.read_candidates(candidate or ())
    except (UnknownCollective, SizeError, tune_fleet.BadCandidate) as error:
        _tell.stop(str(error))
    if GEMM in plan.collectives:
        _tell.stop("gemm sends nothing: no setting of NCCL makes it faster")
    local = _hosts.is_this_machine(hosts, host_list, slurm)
    connect = _hosts.connect_options(transport, python, env_setup, connect_timeout, fan_out, local, ssh_config)
    entries = _hosts.load_inventory(hosts, host_list, slurm).entries
    try:
        result = tune_fleet.tune_over(
            Fleet(entries, connect, master, local, allow_busy),
            plan,
            candidates,
            rounds,
            lambda text: typer.echo(text, err=True),
        )
    except tune_fleet.BadCandidate as error:
        _tell.stop(str(error))
    except Refused as refusal:
        _tell.stop(str(refusal), refusal.code)
    except Failed as reason:
        _tell.stop(f"the default settings themselves fail: {reason}", ExitCode.FINDINGS)
    if result.interrupted:
        _hosts.say_interrupted()
    if format == "json":
        typer.echo(json.dumps(tuning_json(result), indent=2))
    else:
        typer.echo(tuning_text(result), nl=False)
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not result.decided:
        raise typer.Exit(ExitCode.INCOMPLETE)
