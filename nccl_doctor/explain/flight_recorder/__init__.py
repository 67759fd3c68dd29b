"""PyTorch flight-recorder dumps: read them without unpickling, compare the ranks, name who is missing where.

:func:`read` gives one typed :class:`Dump`. :func:`compare` takes the dumps of several ranks and gives
:class:`Conclusion` objects, each with quoted evidence: who called something else, who never called, who called too
often, whose dump is missing, and where nothing but the network or a GPU is left.
"""

from nccl_doctor.explain.flight_recorder.compare import Conclusion, Kind, compare
from nccl_doctor.explain.flight_recorder.dump import (
    Dump,
    Entry,
    FlightRecorderRefused,
    Frame,
    ProcessGroup,
    State,
    collect,
    rank_of_file,
    read,
    thin,
)
from nccl_doctor.explain.kinds import looks_like_dump

__all__ = [
    "Conclusion",
    "Dump",
    "Entry",
    "FlightRecorderRefused",
    "Frame",
    "Kind",
    "ProcessGroup",
    "State",
    "collect",
    "compare",
    "looks_like_dump",
    "rank_of_file",
    "read",
    "thin",
]
