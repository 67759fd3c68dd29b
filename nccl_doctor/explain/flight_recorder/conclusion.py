"""What a comparison of dumps can conclude, and how it is quoted."""

from __future__ import annotations

import enum

from nccl_doctor.explain.flight_recorder.dump import Entry
from nccl_doctor.explain.model import Proof
from nccl_doctor.facts.fold import ranges
from nccl_doctor.findings.model import Evidence

MISMATCH = "app.collective-mismatch"
STRAGGLER = "app.straggler-timeout"
QUOTED = 4  # ranks quoted per side; the title names all of them


class Kind(enum.Enum):
    """What a comparison of dumps found, in the order in which conclusions are listed."""

    OPERATION_MISMATCH = "operation-mismatch"
    DTYPE_MISMATCH = "dtype-mismatch"
    SIZE_MISMATCH = "size-mismatch"
    GROUP_ORDER = "group-order"
    P2P_CYCLE = "p2p-cycle"
    EXTRA_CALL = "extra-call"
    NEVER_CALLED = "never-called"
    P2P_UNMATCHED = "p2p-unmatched"
    NO_DUMP = "no-dump"
    PARTLY_DONE = "partly-done"
    ALL_WAITING = "all-waiting"


class Conclusion(Proof, frozen=True, kw_only=True):
    """One thing the dumps prove, or narrow down."""

    source: str = "flight-recorder"
    kind: Kind
    group: str = ""
    sequence: int | None = None


def folded(ranks: tuple[int, ...] | list[int]) -> str:
    """Ranks as text: ``rank 3``, ``ranks 0-2,7``."""
    return f"rank{'s' if len(set(ranks)) != 1 else ''} {ranges(ranks)}"


def quote(entry: Entry, rank: int, source: str) -> Evidence:
    """One recorded work as one line, in the dump's own words."""
    number = f"collective_seq_id={entry.collective_seq_id}" if entry.is_collective else f"p2p_seq_id={entry.p2p_seq_id}"
    sizes = ", ".join(str(list(size)) for size in entry.input_sizes[:4]) + (
        ", ..." if len(entry.input_sizes) > 4 else ""
    )
    text = f"rank {rank}: {entry.profiling_name} {number} input_sizes=[{sizes}]"
    if entry.input_dtypes:
        text += f" input_dtypes=[{', '.join(sorted(set(entry.input_dtypes)))}]"
    text += f" state={entry.state}"
    if entry.caller:
        text += f" at {entry.caller}"
    return Evidence(text, source=source, rank=rank)
