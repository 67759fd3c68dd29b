"""Dockerfiles: ENV lasts, ARG and ``RUN export`` do not."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import msgspec

from nccl_doctor.env.assignments import INTEREST, Assignment, How, is_ours
from nccl_doctor.env.extract import shell

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)\Z", re.DOTALL)
# A name begins where no letter stands before it: else a long word without = would cost the square of its length.
_PAIR = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)=((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'\\])*)", re.DOTALL
)


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """(line, instruction with its continuation lines): comments inside are blanked, line numbers kept."""
    first, kept = 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if line.lstrip().startswith("#"):
            line = "\\" if kept else ""
        if not kept:
            first = number
        kept += line
        if re.search(r"\\[ \t]*\Z", line):
            kept = kept.rstrip() + "\n"
            continue
        if kept.strip():
            yield first, kept
        kept = ""
    if kept.strip():
        yield first, kept


def read(text: str, file: str = "") -> list[Assignment]:
    """What images built from this file set."""
    found: list[Assignment] = []
    lines = text.split("\n")
    for line, instruction in _instructions(text):
        match = _INSTRUCTION.match(instruction) if INTEREST.search(instruction) else None
        if match is None:
            continue
        word, body = match[1].upper(), match[2]
        offset = line + instruction[: match.start(2)].count("\n")
        if word in ("ENV", "ARG"):
            found += _pairs(word, body, offset, file, lines)
        elif word == "RUN":
            for item in shell.read(body, file, offset, file):
                if item.how is How.EXPORT:
                    item = msgspec.structs.replace(item, lost="RUN export ends with its own layer; use ENV")
                    found.append(item)
                elif item.how is How.CONF:
                    found.append(item)
        elif word in ("CMD", "ENTRYPOINT"):
            found += shell.read(_as_shell(body), file, offset, file)
    return found


def _pairs(word: str, body: str, line: int, file: str, lines: list[str]) -> Iterator[Assignment]:
    lost = "ARG exists only while the image is built; use ENV" if word == "ARG" else ""
    pairs = [(match[1], match[2], match.start()) for match in _PAIR.finditer(body)]
    if word == "ENV" and not re.match(r"\s*[A-Za-z_][A-Za-z0-9_]*=", body):
        name, _, value = body.strip().partition(" ")  # the old form: ENV NAME value with blanks
        pairs = [(name, value.strip(), 0)]
    for name, value, start in pairs:
        if not is_ours(name):
            continue
        number = line + body[:start].count("\n")
        yield Assignment(
            name, shell.value_of(value), file, number, How.DOCKERFILE, lines[number - 1].strip(), file, lost=lost
        )


def _as_shell(body: str) -> str:
    """CMD and ENTRYPOINT in JSON form as one command line."""
    try:
        words = json.loads(body)
    except ValueError:
        return body
    return shlex.join(map(str, words)) if isinstance(words, list) else body
