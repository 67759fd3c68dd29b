"""What ``hang`` asks of each host: its ranks, with py-spy lent to it where it has none."""

from __future__ import annotations

import base64
import functools
import os
import platform
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

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
    """The host's ranks; asked again with our own py-spy where it has none and ours would run there."""
    arguments: dict[str, Any] = {"interval_s": options.interval_s, "stacks": options.stacks}
    lent = py_spy() if options.stacks else ""
    result = session.probe(Job.PROBE, {**arguments, "machine": platform.machine() if lent else ""}, limit_s)
    if result.outcome is Outcome.TOOL_MISSING and lent:
        result = session.probe(Job.PROBE, {**arguments, "py_spy": lent}, limit_s)
    return result


@functools.cache
def py_spy() -> str:
    """The py-spy beside this Python, or on the PATH, packed to be sent; empty if there is none that runs alone."""
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if not found or Path(found).stat().st_size > PROGRAM_LIMIT:
        return ""
    program = Path(found).read_bytes()
    return base64.b64encode(zlib.compress(program, 6)).decode("ascii") if program[:4] == b"\x7fELF" else ""
