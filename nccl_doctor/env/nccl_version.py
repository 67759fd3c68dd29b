"""NCCL version numbers: ``2.28.9`` and ``2.28.9+cuda12.9`` as comparable tuples."""

from __future__ import annotations

import re

Version = tuple[int, int, int]

# The newest release whose rules were read (facts behind the models: NCCL source v2.30.7-1, binaries up to 2.32.3).
NEWEST_KNOWN: Version = (2, 30, 7)


def parse_version(text: str) -> Version:
    """``2.28.9``, ``v2.28.9-1`` or ``2.28.9+cuda12.9`` as (2, 28, 9); ``ValueError`` for anything else."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?!\d)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not an NCCL version such as 2.28.9")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def show(version: Version) -> str:
    """(2, 28, 9) as ``2.28.9``."""
    return ".".join(map(str, version))
