"""Message templates: the text a program prints, with named holes. Matching is linear in the line's length.

``"connect to {address} failed : {error}"`` matches when its literal pieces occur in the line in this order. A hole
takes what stands between two pieces: ``{name}`` anything, ``{name:int}`` an optionally signed whole number of 64 bits,
``{name:hex}``, ``{name:word}`` no blank, ``{}`` anything, thrown away. A hole at the end takes the rest of the line
(typed: as much as fits). There is no backtracking: each piece is looked up once from left to right, and when a typed
hole does not fit, only the first piece is looked for again, at most eight times. So no line can make a template slow.
"""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re

_HOLE = re.compile(r"\{([a-z_]*)(?::(int|hex|word|num))?\}")
_TYPES = {
    "int": re.compile(r"[-+]?\d{1,18}(?!\d)"),  # 64 bits: nothing counts further
    "num": re.compile(r"[-+]?\d{1,18}(?!\d)(?:\.\d+)?"),
    "hex": re.compile(r"(?:0x)?[0-9a-fA-F]+"),
    "word": re.compile(r"\S+"),
}
_RETRIES = 8


class Template:
    """One compiled template. ``anchor`` is its longest literal piece: no line without it can match."""

    __slots__ = ("_holes", "_pieces", "anchor", "text")

    def __init__(self, text: str) -> None:
        self.text = self.anchor = text
        self._pieces: tuple[str, ...] = (text,)
        self._holes: tuple[tuple[str, str | None], ...] = ()
        if "{" in text:  # most have none
            parts = _HOLE.split(text)  # a piece, a hole's name and kind, a piece, ...
            self._pieces, self._holes = tuple(parts[::3]), tuple(zip(parts[1::3], parts[2::3], strict=True))
            if "" in self._pieces[:-1]:
                raise ValueError(f"template {text!r}: literal text must come first and stand between two holes")
            self.anchor = max(self._pieces, key=len)
        if len(self.anchor) < 4:
            raise ValueError(f"template {text!r}: its longest literal piece is too short to look for")

    def match(self, line: str) -> dict[str, str] | None:
        """The holes' contents if the line matches, else None."""
        if not self._holes:
            return {} if self.text in line else None
        start = -1
        for _ in range(_RETRIES):
            start = line.find(self._pieces[0], start + 1)
            if start < 0:
                return None
            groups, again = self._match_at(line, start + len(self._pieces[0]))
            if groups is not None:
                return groups
            if not again:
                return None
        return None

    def _match_at(self, line: str, at: int) -> tuple[dict[str, str] | None, bool]:
        groups: dict[str, str] = {}
        last = len(self._holes) - 1
        for index, (name, kind) in enumerate(self._holes):
            piece = self._pieces[index + 1]
            if not piece:  # only the last hole can have nothing behind it
                content = line[at:].strip() if not kind else _leading(kind, line, at)
                at = len(line)
            else:
                end = line.find(piece, at)
                if end < 0:
                    return None, False
                content = line[at:end]
                at = end + len(piece)
            if content is None or (kind and not _TYPES[kind].fullmatch(content.strip())):
                return None, True
            if index == last and not piece and not content and kind:
                return None, True
            if name:
                groups[name] = content.strip()
        return groups, False


def _leading(kind: str, line: str, at: int) -> str | None:
    found = _TYPES[kind].match(line, at)
    return found.group() if found else None
