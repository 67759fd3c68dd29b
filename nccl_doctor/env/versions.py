"""Release numbers of NCCL and PyTorch: reading and comparing them."""

from __future__ import annotations

import functools
import re

Version = tuple[int, ...]

_TEXT = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:(?:[-+._]|(?:a|b|rc)\d)[\w.+-]*)?")


@functools.lru_cache(1024)  # a fleet has few versions, and each is compared with those of all variables on each host
def parse(text: str) -> Version:
    """``2.21.5``, ``v2.21.5-1``, ``2.21.5+cuda12.4``, ``2.21`` or NCCL's integer ``22105`` -> (2, 21, 5).

    ``ValueError`` if it is none of these. A missing patch number stays missing: (2, 21) stands for every 2.21 release.
    """
    text = text.strip()
    if text.isdigit() and len(text) >= 4:
        number = int(text)
        # NCCL counts major*10000 + minor*100 + patch since 2.9, major*1000 + minor*100 + patch before.
        scale = 10000 if number >= 10000 else 1000
        return (number // scale, number % scale // 100, number % 100)
    match = _TEXT.fullmatch(text)
    if not match:
        raise ValueError(f"not a version: {text!r} (expected such as 2.21.5)")
    return tuple(int(part) for part in match.groups() if part is not None)


def show(version: Version) -> str:
    """(2, 21, 5) -> ``2.21.5``."""
    return ".".join(str(part) for part in version)


def at_least(version: Version, first: str) -> bool:
    """Whether ``version`` is ``first`` or later; (2, 24) counts as its last patch release. Empty ``first``: always."""
    return not first or (*version, 999)[:3] >= parse(first)


def at_most(version: Version, last: str) -> bool:
    """Whether ``version`` is ``last`` or earlier; (2, 4) counts as its first patch release. Empty ``last``: always."""
    return not last or version <= parse(last)


def in_range(text: str, version: Version | None) -> bool:
    """Whether a version lies in a range such as ``>=2.24``, ``<2.23`` or ``>=2.18 <2.27``; ``any`` always holds.

    An unknown version is in every range: the advice then says for which versions it is meant.
    """
    if text.strip() in ("", "any") or version is None:
        return True
    for sign, word in re.findall(r"(>=|<=|<|>|==)\s*(\d+(?:\.\d+)*)", text):
        wanted = tuple(map(int, word.split(".")))
        mine = version[: len(wanted)] if sign in ("<=", "==") else version
        compared = {">=": mine >= wanted, "<=": mine <= wanted, "<": mine < wanted, ">": mine > wanted}
        if not compared.get(sign, mine == wanted):
            return False
    return True
