"""PyTorch flight-recorder dumps: read them without unpickling, compare the ranks, name who is missing where.

:func:`read` gives one typed :class:`Dump`. :func:`compare` takes the dumps of several ranks and gives
:class:`Conclusion` objects, each with quoted evidence: who called something else, who never called, who called too
often, whose dump is missing, and where nothing but the network or a GPU is left.
"""

from nccl_doctor.explain.flight_recorder.compare import compare
from nccl_doctor.explain.flight_recorder.conclusion import Conclusion, Kind
from nccl_doctor.explain.flight_recorder.dump import Dump, FlightRecorderRefused, State, collect, rank_of_file, read

__all__ = [
    "Conclusion",
    "Dump",
    "FlightRecorderRefused",
    "Kind",
    "State",
    "collect",
    "compare",
    "rank_of_file",
    "read",
]
