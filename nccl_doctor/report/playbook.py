"""A playbook on a terminal: its Markdown, the prose in lines of readable length, code left alone."""

from __future__ import annotations

import re
import textwrap

from nccl_doctor.findings.playbooks import Playbook

WIDTH = 100  # columns at most


def text(book: Playbook, width: int = WIDTH) -> str:
    """The page."""
    return f"# {book.title}  ({book.id}, {book.severity})\n\n{_wrapped(book.body, width)}"


def _wrapped(body: str, width: int) -> str:
    lines: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        # Code within a sentence stays in one line, to be copied.
        whole = re.sub("`[^`]+`", lambda code: code.group().replace(" ", "\0"), " ".join(paragraph))
        indent = "  " if whole.startswith("- ") else ""
        told = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines.extend(line.replace("\0", " ") for line in told)
        paragraph.clear()

    code = False
    for line in body.splitlines():
        fence = line.startswith("```")
        verbatim = code or fence or not line or line.startswith("#")
        if verbatim or line.startswith("- "):
            end_paragraph()
        if verbatim:
            lines.append(line)
        else:
            paragraph.append(line.strip())
        code ^= fence
    end_paragraph()
    return "\n".join(lines) + "\n"
