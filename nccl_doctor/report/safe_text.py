"""Make text that came from a host or a log safe to print: what it cannot show, it spells out."""

from __future__ import annotations

import json
import re

# C0 controls but tab, DEL, C1 controls, zero-width and bidirectional controls, line and paragraph separators, BOM,
# interlinear marks, lone surrogates (undecodable bytes) and the tag characters. A newline is a control as well: one
# quoted line must stay one line, so whoever prints several lines splits first.
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
    "|(?<![\u2190-\u2bff\U0001f000-\U0001faff])\ufe0f"  # an emoji may be asked for in colour: Gloo's own message has one
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\x1b": "\\e"}


def _spell(match: re.Match[str]) -> str:
    char = match.group()
    short = _SHORT.get(char)
    if short:
        return short
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str) -> str:
    """Return ``text`` with every character that could move a cursor, hide or reorder text spelled as an escape.

    Escape sequences, C0 and C1 controls, bidirectional and zero-width characters become ``\\e``, ``\\x9b``,
    ``\\u202e`` and the like; tabs become one blank. What is left is one line of printable text, whatever came in.
    Markup of a renderer (rich, HTML, XML) is not its business: escape that in the renderer.
    """
    return _UNSAFE.sub(_spell, text.replace("\t", " "))


def lines(text: str) -> str:
    """The same of a text that may have several lines of our own."""
    return "\n".join(map(visible, text.split("\n")))


def json_text(document: bytes) -> str:
    """A JSON document in ASCII, ending in a newline: it reads back as it was, drives no terminal, fits every locale."""
    return re.sub("[^\n -~]", lambda char: json.dumps(char.group())[1:-1], document.decode().rstrip("\n")) + "\n"


def moment(created: str) -> str:
    """A bundle's or run's time (ISO 8601) as people read it: ``2026-11-21 03:15:02 UTC``."""
    return re.sub(r"\.\d+", "", visible(created)).replace("T", " ").replace("+00:00", " UTC")
