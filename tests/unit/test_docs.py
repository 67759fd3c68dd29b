"""Generated pages are what the code says; playbooks keep their format; the README's links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typing_in import typed

from nccl_doctor import cli
from nccl_doctor.findings import manual, playbooks
from nccl_doctor.report.playbook import text
from nccl_doctor.rules.engine import STAGES

TOP = Path(__file__).resolve().parents[2]


def _generator() -> object:
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh() -> None:
    stale = [path.name for path, text in _generator().pages().items() if path.read_text(encoding="utf-8") != text]  # type: ignore[attr-defined]
    assert not stale, "stale: run `python docs/generate.py`"


@pytest.mark.parametrize("id", playbooks.names())
def test_playbook_format(id: str) -> None:
    book = playbooks.load(id)
    assert book.id == id and book.title
    assert book.severity in ("fail", "warn", "info")
    for heading in playbooks.HEADINGS:
        assert book.section(heading), f"{id}: {heading} is empty"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("title: a\n---\nbody\n", "must begin with front matter"),
        ("---\ntitle: a\n", "must begin with front matter"),
        ("---\ntitle: [\n---\nbody\n", "front matter: "),
        ("---\ntitle: a\n---\nbody\n", "front matter: "),
    ],
)
def test_what_is_no_playbook_is_refused(text: str, why: str) -> None:
    with pytest.raises(playbooks.PlaybookError, match=f"^p.md: {why}"):
        playbooks.parse(text, "p.md")


@pytest.mark.parametrize("id", playbooks.names())
def test_a_playbook_on_a_terminal_has_all_words_and_no_long_prose(id: str) -> None:
    book = playbooks.load(id)
    told = text(book, 72)
    head, _, body = told.partition("\n\n")
    assert head == f"# {book.title}  ({book.id}, {book.severity})" and body.split() == book.body.split()
    prose, code = body.split("```")[::2], body.split("```")[1::2]
    assert code == book.body.split("```")[1::2]
    long = [line for part in prose for line in part.splitlines() if len(line) > 72]
    assert not [line for line in long if " " in re.sub("`[^`]+`", "", line.strip().removeprefix("- "))], long


def test_a_playbook_is_wrapped_by_paragraph_and_item() -> None:
    body = "## H\none two\nthree `a b` x\n- four five six\n  seven\n- eight\n\n```\na  b c d e f\n```\n"
    book = playbooks.Playbook("i", "t", "fail", body)
    assert text(book, 10).partition("\n\n")[2] == (
        "## H\none two\nthree\n`a b` x\n- four\n  five six\n  seven\n- eight\n\n```\na  b c d e f\n```\n"
    )


def test_a_playbook_ends_with_the_check_that_shows_whether_it_helped() -> None:
    for name, stage in (("net.firewall", "ports"), ("host.no-route", "connectivity"), ("gpu.ecc.contained", "gpu")):
        told = typed("playbook", name).output
        assert told.endswith(f"\n\nMended? nccl-doctor check --hosts HOSTFILE --stage {stage}\n")
    assert "Mended?" not in typed("playbook app.rank-exception").output  # no check shows it


def test_the_beginning_of_ids_lists_those() -> None:
    done = typed("playbook net")
    listed = [line.split()[0] for line in done.output.splitlines()]
    assert listed == [name for name in playbooks.names() if name.startswith("net.")] and "net.mtu" in listed


def test_links_between_pages_exist() -> None:
    pages = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md")), *sorted((TOP / "playbooks").glob("*.md"))]


def test_what_stands_in_a_playbook_as_commands_is_shell(tmp_path: Path) -> None:
    """A sentence among commands is pasted at 3 a.m.: `bash -n` reads every block that does not name its language."""
    script = tmp_path / "all.sh"
    blocks = [
        f"# {page.name}\n{block}\n"
        for page in sorted((TOP / "playbooks").glob("*.md"))
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    script.write_text("".join(blocks), encoding="utf-8")
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert len(blocks) > 150 and not done.stderr


def test_commands_of_playbooks_have_the_rights_they_need_and_capitals_where_words_are_filled_in() -> None:
    """The kernel's log is root's on most hosts, and a reader has no variables of somebody else's script."""
    unfit = re.compile(r"(?:^|[;&|'] ?)(?:dmesg|journalctl [^;|]*-k)|--hosts (?!HOSTFILE)", re.MULTILINE)
    foreign = re.compile(r"\$(?!(?:CUDA_|LD_|NCCL_|PATH\b|SLURM_))[A-Z]")
    for page in (TOP / "playbooks").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        inline = "\n".join(re.findall(r"`([^`\n]+)`", text))
        assert not unfit.findall(f"{blocks}\n{inline}") and not foreign.findall(blocks), page.name


def test_pages_that_playbooks_and_code_name_exist() -> None:
    texts = [*PAGES, *(TOP / "nccl_doctor").rglob("*.py")]
    named = {name for page in texts for name in re.findall(r"\bdocs/[\w./-]+\.md\b", page.read_text(encoding="utf-8"))}
    assert len(named) > 5 and not [name for name in named if not (TOP / name).exists()]


def _commands(page: Path) -> list[list[str]]:
    """The command lines of ours in code, without comments and what comes after ``--``."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks, prose = text.split("```")[1::2], "".join(text.split("```")[::2])
    code = "\n".join([*blocks, *(words.replace("\n", " ") for words in re.findall(r"`([^`]+)`", prose))])
    found = re.findall(r"(?:^|[;&|]) *(?:\$ |sudo )?nccl-doctor ([a-z][^\n;|&]*)", code, re.MULTILINE)
    return [shlex.split(re.split(r" -- [a-z]|  +#|  {4,}", line)[0], comments=True) for line in found]


def test_commands_of_ours_that_pages_name_exist_with_their_options() -> None:
    """Words and options of every `nccl-doctor ...` in README, docs and playbooks."""
    top = typer.main.get_command(cli.app)
    wrong, seen = [], 0
    for page in PAGES:
        for words in _commands(page):
            command, rest = top, words
            while rest and rest[0] in getattr(command, "commands", {}):
                command, rest = command.commands[rest[0]], rest[1:]  # type: ignore[attr-defined]
            options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {
                "-h",
                "--help",
            }
            unknown = [word for word in rest if re.match("--?[a-z]", word) and word.split("=")[0] not in options]
            if unknown or (hasattr(command, "commands") and words != ["env"]):
                wrong.append(f"{page.name}: nccl-doctor {' '.join(words)}")
            seen += 1
    assert seen > 100 and not wrong


def _all_commands(command: typer.main.click.Command, words: str = "") -> dict[str, typer.main.click.Command]:
    below = getattr(command, "commands", {})
    return {words: command} | {
        name: found
        for word, child in below.items()
        for name, found in _all_commands(child, f"{words} {word}".strip()).items()
    }


@pytest.mark.parametrize("words", _all_commands(typer.main.get_command(cli.app)))
def test_help_fits_eighty_columns_and_its_examples_are_commands(words: str) -> None:
    told = typed(words, "--help", env={"COLUMNS": "80"}).output
    assert "Usage" in told and not [line for line in told.splitlines() if len(line) > 80]
    commands = _all_commands(typer.main.get_command(cli.app))
    for line in re.findall(r"^ +nccl-doctor (.*)", told, re.MULTILINE):
        name, *rest = re.split("  +", line)[0].split(" -- ")[0].split()
        if name == "env":
            name, rest = f"env {rest[0]}", rest[1:]
        known = {option for param in commands[name].params for option in param.opts}
        assert not [word for word in rest if word.startswith("-") and word not in known], line


def test_words_find_the_playbooks_that_hold_them() -> None:
    found = typed("playbook address", "already in", "use")
    assert "net.port-in-use.store" in found.output and "gpu.ecc" not in found.output
    hang = typed("playbook hang").output.splitlines()
    assert hang[0].startswith("hang.") and "collectives.slow-pair" not in "".join(hang)  # it holds "exchange" only
    said = typed("playbook unhandled system error")
    assert "nccl-doctor docs first-aid" in said.output and said.exit_code == 0
    line = "NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1691, unhandled system error (run with NCCL_DEBUG=INFO), NCCL 2.19.3"
    assert "nccl-doctor docs first-aid" in typed("playbook", line).output
    assert "first-aid" not in typed("playbook", "Address already in use").output
    assert typed("playbook", "CUDA out of memory").output.startswith("gpu.oom ")
    assert "app.ddp-unused-params" in typed("playbook", "unused parameters").output
    assert typed("playbook", "gpu_ecc_dbe").output.startswith("gpu.ecc ")  # an Xid's name in NVIDIA's catalogue
    none = typed("playbook", "no such words at all")
    assert none.exit_code == 2 and "none holds these words" in none.output


def test_the_documentation_is_told_on_the_terminal() -> None:
    listed = typed("docs").output
    assert [line.split()[0] for line in listed.splitlines()] == [
        path.stem for path in sorted((TOP / "docs").glob("*.md"))
    ]
    page = typed("docs docs/inventory.md", env={"COLUMNS": "60"}).output
    assert "\nMPICH, Hydra\n    `gpu01:8`\n" in page and "---" not in page and "](" not in page
    page = typed("docs estimate", env={"COLUMNS": "60"}).output
    assert (
        "\n1. Measure the rates, " in page
        and "\n2. Take the time of a step of your job from its log, and say\n   on " in page
    )
    assert typed("docs inventry").exit_code == 2


def test_an_installation_without_its_pages_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "pages", dict)
    told = typed("docs")
    assert told.exit_code == 2 and "reinstall nccl-doctor" in told.output
    assert "app.ddp-unused-params" in typed("playbook", "unused parameters").output


def test_the_pieces_that_contributors_copy_work(tmp_path: Path) -> None:
    """The probe, the fact and the rule of docs/contributing.md, run as they stand there."""
    pieces = re.findall(
        r"^```python\n(.*?)^```", (TOP / "docs" / "contributing.md").read_text(encoding="utf-8"), re.M | re.S
    )
    clock = tmp_path / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    clock.parent.mkdir(parents=True)
    clock.write_text("hpet\n")
    script = tmp_path / "pieces.py"
    script.write_text(
        "\n".join(pieces)
        + """
from nccl_doctor.agent.probing import PROBES
from nccl_doctor.rules.engine import MissingFact
from nccl_doctor.facts.model import HostFacts, Outcome, ProbeResult, Reach, ReachOutcome
def judged(*results):
    host = Host(HostFacts("gpu01", Reach(ReachOutcome.OK), {"clocksource": result for result in results}))
    try:
        return [(item.id, item.hosts) for item in slow_clock(host, Plan())]
    except MissingFact:
        return "unknown"
asked = PROBES["clocksource"].function({})
print(judged(ProbeResult(Outcome.OK, asked)), judged(ProbeResult(Outcome.OK, {"name": "tsc"})), judged())
""",
        encoding="utf-8",
    )
    environment = {**os.environ, "NCCL_DOCTOR_ROOT": str(tmp_path), "PYTHONPATH": str(TOP)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert len(pieces) == 3 and (done.stdout, done.stderr) == ("[('sys.clocksource', ('gpu01',))] [] unknown\n", "")


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("playbook net.mtu.b", "net.mtu.black-hole"),
        ("docs exi", "exit-codes"),
        ("check --stage topo", "topology"),
        ("check --mesh s", "sparse"),
        ("bench allreduce --format nccl", "nccl-tests"),
    ],
)
def test_a_shell_completes_names(words: str, known: str) -> None:
    environment = {
        "_NCCL_DOCTOR_COMPLETE": "complete_bash",
        "COMP_WORDS": f"nccl-doctor {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = typed("", env=environment, prog_name="nccl-doctor")
    assert done.output.split() == [known]


def test_help_tells_a_time_with_its_unit() -> None:
    for name, times in (("check", ["10s", "3m"]), ("hang", ["3s", "10s", "2m"]), ("bench", ["30s", "1m", "10s"])):
        told = " ".join(typed(f"{name} --help", env={"COLUMNS": "80"}).output.split())
        assert re.findall(r" TIME (?:(?! --).)*?\[default: ([^\]]+)\]", told) == times, name


def test_help_names_every_stage() -> None:
    told = " ".join(typed("check --help", env={"COLUMNS": "80"}).output.split())
    assert f"(several: repeat, or commas): {', '.join(STAGES)}." in told
