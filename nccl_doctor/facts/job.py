"""The processes of a distributed job, read twice within seconds (probe ``job``)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import msgspec

from nccl_doctor.facts.model import Count, Fact

State = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]?\Z")]  # of a process: the kernel's letter

_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3[.\d]*)/")


class Frame(msgspec.Struct, frozen=True):
    """One Python frame, as py-spy tells it.

    Of the innermost of torch.distributed: ``peer``, the rank of the job that the call names (``src``, ``dst``), None where
    it names none or it was not read; ``default_group``: the call is known to name no group.
    """

    function: str
    file: str
    line: int = 0
    peer: int | None = None
    default_group: bool = False

    @property
    def short(self) -> str:
        """The file from the package's name on, or its own name: ``torch/nn/parallel/distributed.py``, ``train.py``."""
        return _INSTALLED.sub("", self.file) if self.installed else self.file.rpartition("/")[2]

    @property
    def installed(self) -> bool:
        """Whether it is of an installed package or of Python itself: not of the user's own program."""
        return self.file.startswith("<") or bool(_INSTALLED.match(self.file))

    def __str__(self) -> str:
        return f"{self.function} ({self.short}:{self.line})"


class PythonThread(msgspec.Struct, frozen=True):
    """A Python thread and its frames, innermost first."""

    id: int | None = None
    name: str = ""
    frames: tuple[Frame, ...] = ()


class Stacks(msgspec.Struct, frozen=True):
    """What py-spy said of one process; the main thread comes first."""

    outcome: str
    detail: str = ""
    threads: tuple[PythonThread, ...] = ()


class Thread(msgspec.Struct, frozen=True):
    """A kernel thread. ``waits_in`` is the kernel function it sleeps in, ``call`` and ``file`` its system call's.

    ``holder``: the process that has the file lock it waits for.
    """

    id: int = 0
    state: str = ""
    waits_in: str = ""
    call: str = ""
    file: str = ""
    file_system: str = ""
    holder: int = 0
    holder_name: str = ""
    kernel_stack: tuple[str, ...] = ()


class Reading(msgspec.Struct, frozen=True):
    """One process at one moment. Bytes are those of its read and write calls; None is not ours to read."""

    state: State
    cpu_s: float
    main: Thread | None = None
    others: tuple[Thread, ...] = ()  # of the other threads those that run, or are stuck in the kernel
    frozen: bool = False  # its control group is
    dumps_core: bool = False  # it has crashed, and the kernel writes its memory to a file
    tracer: int = 0
    resident_bytes: Count = 0
    read_bytes: int | None = None
    written_bytes: int | None = None


class Connection(msgspec.Struct, frozen=True):
    """A TCP socket at the second reading; ``before_`` and ``moved_bytes`` compare it with the first.

    ``timeouts``: retransmissions in a row that nothing answered. None: this kernel does not tell it here.
    """

    local: str
    peer: str
    state: str
    unsent_bytes: int = 0
    unread_bytes: int = 0
    before_unsent_bytes: int | None = None
    timeouts: int = 0
    moved_bytes: int | None = None
    sent_ago_ms: int | None = None
    received_ago_ms: int | None = None
    acked_bytes: int | None = None
    received_bytes: int | None = None


class Process(msgspec.Struct, frozen=True):
    """A process that bears a rank's variables. ``role``: ``rank``, its ``child``, a ``wrapper`` around it, or a ``launcher``
    (torchrun, with its ``options``).

    ``launcher``: the name of its parent; empty where that is one of these processes.

    ``spawned``: torch's mp.spawn gave it its number, which stands in no variable. ``placed``: it has its number on its
    host and its host's number only.

    ``readings`` and ``stacks``: at the first and the second look; None where it had ended, or was not asked.
    """

    pid: int
    parent: int
    role: str
    comm: str = ""
    program: str = ""
    script: str = ""
    launcher: str = ""
    uid: int = 0
    start_ticks: int = 0
    age_s: float = 0.0
    namespace: str = ""
    environment: dict[str, str] = {}
    rank_pid: int = 0
    spawned: bool = False
    placed: bool = False
    options: dict[str, str] = {}
    readings: tuple[Reading | None, Reading | None] = (None, None)
    stacks: tuple[Stacks | None, Stacks | None] = (None, None)
    connections: tuple[Connection, ...] = ()
    devices: tuple[str, ...] = ()  # open ones that ranks talk through: gpu, rdma


class RasAnswer(msgspec.Struct, frozen=True):
    """One answer of NCCL's RAS service, or why there is none."""

    address: str
    text: str = ""
    error: str = ""


class DumpFile(msgspec.Struct, frozen=True):
    """A flight-recorder dump that a rank has written: base64 of the zlib-packed file."""

    rank: int
    pid: int
    path: str
    data: str


class Refused(msgspec.Struct, frozen=True):
    """Python processes whose variables this user may not read."""

    count: int = 0


class Job(Fact, frozen=True):
    """All processes on this host that bear a rank, and what surrounds them."""

    PROBE: ClassVar[str] = "job"
    processes: tuple[Process, ...]
    uid: int = 0
    namespace: str = ""
    interval_s: float = 0.0
    refused: Refused = Refused()
    listening: tuple[int, ...] | None = None  # TCP ports of its own network on which somebody does; None: not known
    unnumbered: int = 0  # Python processes that multiprocessing started, without a rank that could be read
    no_stacks: str = ""  # why there are none; empty: they were taken
    ras: tuple[RasAnswer, ...] = ()
    dumps: tuple[DumpFile, ...] = ()
    dump_problems: tuple[str, ...] = ()  # those that were left out, and why
    memory: tuple[dict[str, int], ...] = ()
    killed: tuple[
        dict[str, int | None], ...
    ] = ()  # by the files that count it in the ranks' control groups ("": there is none)
    pressure: dict[str, str] = msgspec.field(default_factory=dict)
    total_memory: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def killed_in_groups(self) -> dict[str, int]:
        """By how much these counts rose from look to look, where both are known."""
        before, after = (self.killed[0], self.killed[-1]) if self.killed else ({}, {})
        known = {file: (count, after.get(file)) for file, count in before.items()}
        return {file: last - first for file, (first, last) in known.items() if first is not None and last is not None}
