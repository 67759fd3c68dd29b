"""What ``hang`` asks of each host: its ranks; and how py-spy is lent to one that has none (``watch`` does so, too)."""

from __future__ import annotations

import base64
import functools
import os
import platform
import shutil
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from nccl_doctor.facts.job import Job
from nccl_doctor.facts.model import Outcome, ProbeResult
from nccl_doctor.transport.session import Session

PROBE_S = 60.0  # beyond the time between the looks: hundreds of ranks and workers on one host
GPU_USE = {"use_only": True, "nvml_limit_s": 20.0, "nvml_start_s": 15.0, "nvml_silence_s": 5.0}
GPU_USE_S = 25.0  # a driver that hangs is part of the answer, and not to be waited for
PROGRAM_LIMIT = 32 << 20  # bytes of a py-spy that is lent


class JobOptions(msgspec.Struct, frozen=True):
    """What the user asked of ``hang``: seconds between the two looks, and whether Python stacks are taken."""

    interval_s: float = 3.0
    stacks: bool = True


def ask(session: Session, options: JobOptions, limit_s: float) -> ProbeResult:
    """The host's ranks, as one probe tells them."""
    arguments = {"interval_s": options.interval_s, "stacks": options.stacks}
    return with_py_spy(lambda lent: session.probe(Job.PROBE, {**arguments, **lent}, limit_s))


def with_py_spy(ask: Callable[[dict[str, str]], ProbeResult]) -> ProbeResult:
    """``ask``, with further arguments; asked again with our own py-spy where the host has none and ours would run there."""
    program = py_spy()
    result = ask({"machine": platform.machine() if program else ""})
    if result.outcome is not Outcome.TOOL_MISSING or program is None:
        return result
    with _packing:  # once, however many hosts ask at the same time
        packed = _packed(program)
    return ask({"py_spy": packed})


def py_spy() -> Path | None:
    """The py-spy beside this Python, or on the PATH; None if there is none that runs alone."""
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if not found or Path(found).stat().st_size > PROGRAM_LIMIT:
        return None
    with Path(found).open("rb") as program:
        return Path(found) if program.read(4) == b"\x7fELF" else None


_packing = threading.Lock()


@functools.cache
def _packed(program: Path) -> str:
    return base64.b64encode(zlib.compress(program.read_bytes(), 6)).decode("ascii")
