"""Playbooks: one Markdown file per cause, with front matter and fixed headings, shipped inside the wheel."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

HEADINGS = ("What it means", "How to confirm", "Fix now", "Fix for good", "References")


class EnvEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment variable a playbook recommends, with the NCCL (or torch) versions it holds for."""

    name: str
    value: str
    versions: str
    when: str


class Playbook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One playbook: its front matter and its Markdown body.

    ``repeats``: the same command fails again, on whatever hosts: only the program or how it is called can mend it.
    """

    id: str
    title: str
    severity: str
    body: str
    tags: tuple[str, ...] = ()
    env: tuple[EnvEntry, ...] = ()
    repeats: bool = False

    def section(self, heading: str) -> str:
        """The text under ``## heading``, stripped; ``KeyError`` if there is none."""
        parts = ("\n" + self.body).split(f"\n## {heading}\n")
        if len(parts) != 2:
            raise KeyError(f"playbook {self.id} has no section {heading!r}")
        return parts[1].split("\n## ")[0].strip()


class PlaybookError(ValueError):
    """A playbook file that does not keep the format; says which file and what is wrong."""


def shipped(name: str) -> Path | None:
    """Where pages that are shipped lie: inside the installed package, or at the top of a source checkout."""
    package = Path(__file__).resolve().parent.parent
    return next((place for place in (package / name, package.parent / name) if place.is_dir()), None)


def directory() -> Path:
    """Where the playbooks lie."""
    if found := shipped("playbooks"):
        return found
    raise PlaybookError("no playbooks directory: the installation is incomplete, reinstall nccl-doctor")


def parse(text: str, name: str) -> Playbook:
    """Parse one playbook; ``PlaybookError`` says what does not keep the format. ``name`` is the file's name."""
    import yaml

    if not text.startswith("---\n") or "\n---\n" not in text:
        raise PlaybookError(f"{name}: must begin with front matter between two lines '---'")
    head, body = text[4:].split("\n---\n", 1)
    try:
        front: Any = yaml.safe_load(head)
        told = {**front, "body": body.strip() + "\n"} if isinstance(front, dict) else front
        playbook = msgspec.convert(told, Playbook)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise PlaybookError(f"{name}: front matter: {error}") from error
    found = tuple(line[3:].strip() for line in body.splitlines() if line.startswith("## "))
    if found != HEADINGS:
        raise PlaybookError(f"{name}: headings are {found}, expected {HEADINGS}")
    return playbook


@functools.cache
def names() -> tuple[str, ...]:
    """The ids of all playbooks, sorted."""
    return tuple(sorted(path.stem for path in directory().glob("*.md")))


@functools.cache
def load(id: str) -> Playbook:
    """The playbook with exactly this id; ``KeyError`` if there is none."""
    if id not in names():
        raise KeyError(id)
    return parse((directory() / f"{id}.md").read_text(encoding="utf-8"), f"{id}.md")


def for_finding(id: str) -> str:
    """The id of the playbook for a finding id: its own, or the nearest parent's; empty if there is none."""
    parts = id.split(".")
    for length in range(len(parts), 0, -1):
        candidate = ".".join(parts[:length])
        if candidate in names():
            return candidate
    return ""
