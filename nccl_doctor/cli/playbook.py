"""``nccl-doctor playbook``: list the playbooks, or show one."""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer

from nccl_doctor.cli import _tell, app


def _names(incomplete: str) -> list[str]:
    """The ids that begin so, for a shell's Tab."""
    from nccl_doctor.findings import playbooks

    return [name for name in playbooks.names() if name.startswith(incomplete)]


@app.command(short_help="What does a finding mean, and how is it fixed?")
def playbook(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID | WORDS]",
            autocompletion=_names,
            help="A finding's or playbook's id; the beginning of one, such as net, lists those; words, such as 'no route', "
            "list the playbooks that hold them; without, all are listed.",
        ),
    ] = None,
) -> None:
    """Show what a finding means, how to confirm it, and how to fix it. CAPITALS in commands are yours to fill in."""
    from nccl_doctor.findings import playbooks

    id = " ".join(words or ())
    if not words:
        _list(playbooks.names())
    elif name := playbooks.for_finding(id):
        if name != id:
            typer.echo(f"{id} has no page of its own; this is {name}", err=True)
        _show(name)
    elif below := [name for name in playbooks.names() if name.startswith(f"{id}.")]:
        _list(below)
    else:
        _search(id)


def _show(name: str) -> None:
    from nccl_doctor.findings import playbooks
    from nccl_doctor.report.playbook import WIDTH, text

    typer.echo(text(playbooks.load(name), _tell.columns(WIDTH)), nl=False)
    if stages := _measured_by(name):
        typer.echo(f"\nMended? nccl-doctor check --hosts HOSTFILE --stage {','.join(stages)}")


def _search(words: str) -> None:
    """List what there is for these words; stop where there is nothing."""
    from nccl_doctor.findings import manual, playbooks

    holding = _holding(words)
    if aid := _is_of_first_aid(words, manual.pages().get("first-aid", "")):
        typer.echo("what this message says, and what it does not: nccl-doctor docs first-aid\n")
    if holding:
        _list(holding)
    if not holding and not aid:
        near = difflib.get_close_matches(words, playbooks.names(), n=3, cutoff=0.6)
        none = ", and none holds these words; of a whole log: nccl-doctor explain LOG"
        _tell.stop(f"no playbook {words!r}" + (f"; did you mean: {', '.join(near)}?" if near else none))


def _measured_by(name: str) -> list[str]:
    """The stages of `check` that can give this finding, or one beneath it."""
    from nccl_doctor.rules import engine, reach

    ids = [("connectivity", id) for id in reach.IDS]
    ids += [(rule.stage, id) for rule in engine.all_rules() for id in rule.ids if rule.stage in engine.STAGES]
    return list(dict.fromkeys(stage for stage, id in ids if f"{id}.".startswith(f"{name}.")))


def _list(names: Sequence[str]) -> None:
    from nccl_doctor.findings import playbooks

    columns = _tell.columns(200) if sys.stdout.isatty() else 200  # a line each, for grep
    width = min(max(map(len, names)), columns // 2)
    for name in names:
        row = f"{name:<{width}}  {playbooks.load(name).title}"
        typer.echo("\n".join(textwrap.wrap(row, columns, subsequent_indent=" " * (width + 2))))


def _holding(words: str) -> list[str]:
    """The playbooks for these words: what `explain` says of such a line, those of an Xid's mnemonic, then those that hold
    them, or else each of them."""
    from nccl_doctor.explain import api
    from nccl_doctor.explain.model import LogSource
    from nccl_doctor.facts.xid import xids
    from nccl_doctor.findings import playbooks

    told = api.analyse([LogSource("", words.encode(errors="replace"))])
    named = [cause.playbook for cause in told.causes[:2] if cause.id != "unrelated"]
    named += [playbooks.for_finding(xid.finding) for xid in xids().values() if xid.mnemonic == words.upper()]
    books = [playbooks.load(name) for name in playbooks.names()]
    for pieces in ([words], words.split()):
        wanted = [_pattern(piece) for piece in pieces]
        head, text = (
            [book.id for book in books if all(pattern.search(part(book)) for pattern in wanted)]
            for part in (lambda book: " ".join((book.id, book.title, *book.tags)), lambda book: book.body)
        )
        if head or text:
            break
    return list(dict.fromkeys([*named, *head, *text]))


def _is_of_first_aid(words: str, page: str) -> bool:
    """Whether these words are of a message in the page's table, or a whole line with such a message."""
    messages = re.findall(r'"[^"]+"|\bnccl\w+', " ".join(re.findall(r"^\| (.+?) \|", page, re.MULTILINE)))
    return any(_pattern(words).search(told) or told.strip('"').lower() in words.lower() for told in messages)


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(r"\b" + re.escape(words).replace(r"\ ", r"[\s-]+"), re.IGNORECASE)
