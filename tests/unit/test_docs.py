"""Generated pages are what the code says; playbooks keep their format; the README's links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nccl_doctor import cli
from nccl_doctor.findings import playbooks
from nccl_doctor.report.playbook import text

cli._load_commands()
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
    assert book.id == id and book.title and book.area
    assert book.severity in ("fail", "warn", "info")
    for heading in playbooks.HEADINGS:
        assert book.section(heading), f"{id}: {heading} is empty"


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
    book = playbooks.Playbook("i", "t", "a", "fail", (), (), body)
    assert text(book, 10).partition("\n\n")[2] == (
        "## H\none two\nthree\n`a b` x\n- four\n  five six\n  seven\n- eight\n\n```\na  b c d e f\n```\n"
    )


def test_the_beginning_of_ids_lists_those() -> None:
    done = CliRunner().invoke(cli.app, ["playbook", "net"])
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
