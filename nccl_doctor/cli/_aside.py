"""Something of ours in a process of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from nccl_doctor.agent import children


def ourselves(program: str, *words: str) -> list[str]:
    """A command line of this very installation, whatever lies in the working directory: ``main`` is ``nccl-doctor``."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from nccl_doctor.cli import main; {program}"
    return [sys.executable, "-c", start, *words]


def aside(argv: list[str], limit_s: float, cut: Callable[[], bool], **options: Any) -> bool:
    """Run something of ours in a process of its own, which may hang or take memory without touching the job; ended where it
    is cut short, or after the limit (then False)."""
    child = children.spawn(argv, **options)
    try:
        until = time.monotonic() + limit_s
        while child.poll() is None:
            if cut() or time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True
    finally:
        children.finish(child, 5.0)
