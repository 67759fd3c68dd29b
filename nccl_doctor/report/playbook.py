"""Playbooks and other pages on a terminal: their Markdown, the prose in lines of readable length, code left alone."""

from __future__ import annotations

import re
import textwrap

from nccl_doctor.findings.playbooks import Playbook

WIDTH = 100  # columns at most
_ITEM = re.compile(r"- |[0-9]+\. ")  # of a list


def text(book: Playbook, width: int = WIDTH) -> str:
    """The page."""
    return f"# {book.title}  ({book.id}, {book.severity})\n\n{told(book.body, width)}"


def told(body: str, width: int = WIDTH) -> str:
    """Markdown for a terminal: of a link its text, of a table's row the first cell, and the others beneath it."""
    lines: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        whole = " ".join(paragraph)
        item = _ITEM.match(whole)
        lines.extend(_filled(whole, width, "", " " * len(item[0]) if item else ""))
        paragraph.clear()

    code = False
    for line in body.splitlines():
        fence = line.startswith("```")
        verbatim = code or fence or not line or line.startswith("#")
        row = not code and line.startswith("|")
        if verbatim or row or _ITEM.match(line):
            end_paragraph()
        if verbatim:
            lines.append(line)
        elif row:
            lines.extend(_row([cell.strip() for cell in line.strip("|").split(" | ")], width))
        else:
            paragraph.append(line.strip())
        code ^= fence
    end_paragraph()
    return "\n".join(lines) + "\n"


def _row(cells: list[str], width: int) -> list[str]:
    """A row of a table; what is under its head is none."""
    if not cells[0].strip("-|"):
        return []
    rest = " | ".join(cells[1:])
    if len(cells[0]) < 12:
        return _filled(f"{cells[0]}  {rest}", width, "", "    ")
    return [*_filled(cells[0], width), *_filled(rest, width, "    ", "    ")]


def _filled(prose: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Lines of that width. Code within a sentence stays in one line, to be copied."""
    whole = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", prose)
    whole = re.sub("`[^`]+`", lambda code: code.group().replace(" ", "\0"), whole)
    lines = textwrap.wrap(
        whole, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]
