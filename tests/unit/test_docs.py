"""Generated pages are what the code says; playbooks keep their format; the README's links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from nccl_doctor.findings import playbooks

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


def test_links_between_pages_exist() -> None:
    pages = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
