"""One rank's flight-recorder dump, typed, read without unpickling.

A dump is what one rank remembers of its last collectives (``TORCH_FR_BUFFER_SIZE`` entries). Formats: torch 2.2 wrote
a pickled list of entries; 2.3 and newer a pickled dict; ``_dump_fr_trace_json`` the same dict as JSON, without stack
frames and with 0 for a time that is not known. A dump does not say which rank wrote it: the file's name does.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import msgspec

from nccl_doctor.explain import plain_pickle
from nccl_doctor.facts import files


class FlightRecorderRefused(ValueError):
    """The bytes are not a flight-recorder dump that can be read safely; ``reason`` is one sentence."""

    def __init__(self, reason: str, source: str = "") -> None:
        self.reason = reason
        self.source = source
        super().__init__(f"{source}: {reason}" if source else reason)


class State(enum.Enum):
    """What a dump proves of one work. ``WAITING`` is scheduled or started and not known to be completed."""

    COMPLETED = "completed"
    WAITING = "waiting"
    UNKNOWN = "unknown"


class Frame(msgspec.Struct, frozen=True):
    """One frame of the Python stack that called the collective, innermost first."""

    name: str = ""
    filename: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} ({self.name})"


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group as the dump's ``pg_config`` describes it; ``ranks`` are global, None where not recorded."""

    name: str
    ranks: tuple[int, ...] | None


class Entry(msgspec.Struct, frozen=True):
    """One recorded work. Times are nanoseconds since the epoch; sizes are tensor shapes; dtypes torch's names."""

    record_id: int = 0
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    profiling_name: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str = ""
    time_created_ns: int = 0
    time_discovered_completed_ns: int | None = None
    retired: bool = False
    is_p2p: bool = False
    frames: tuple[Frame, ...] = ()

    @property
    def backend(self) -> str:
        """``nccl`` of ``nccl:all_reduce``; empty if the name has no backend."""
        return self.profiling_name.partition(":")[0] if ":" in self.profiling_name else ""

    @property
    def operation(self) -> str:
        """``all_reduce`` of ``nccl:all_reduce``; of a send ``send 0->1``, with ranks of the group."""
        return self.profiling_name.partition(":")[2] or self.profiling_name

    @property
    def is_collective(self) -> bool:
        """False for send, recv and batches of them, which have their own sequence and may differ between ranks."""
        return not self.is_p2p and not self.operation.startswith(("send ", "recv "))

    @property
    def proven_state(self) -> State:
        """What the record proves. Gloo never sets ``state``, and retires failed works like finished ones."""
        if self.state == "completed" or self.time_discovered_completed_ns:
            return State.COMPLETED
        if self.backend == "gloo" and self.retired:
            return State.UNKNOWN
        return State.WAITING

    @property
    def caller(self) -> Frame | None:
        """The innermost frame outside torch: the user's line. None if the dump has no stacks."""
        for frame in self.frames:
            if "/torch/" not in frame.filename and not frame.filename.startswith("<"):
                return frame
        return self.frames[0] if self.frames else None


class Dump(msgspec.Struct, frozen=True):
    """One rank's flight-recorder dump, and the file that it was read from."""

    groups: tuple[ProcessGroup, ...]
    entries: tuple[Entry, ...]  # oldest first
    source: str = ""


_TRAILING_RANK = re.compile(r"(\d+)(?:\.(?:json|pickle|pkl|pt|bin|dump))?(?:\.(?:gz|xz|zst|bz2))?$")


def rank_of_file(path: str) -> int | None:
    """The rank in a dump's file name: torch appends it to a prefix (``nccl_trace_rank_12``)."""
    found = _TRAILING_RANK.search(PurePath(path).name)
    return int(found.group(1)) if found and len(found.group(1)) <= 7 else None


def read(data: bytes, source: str = "") -> Dump:
    """Read one dump, pickle or JSON, of any torch release; :class:`FlightRecorderRefused` says why not.

    Nothing of the file is executed: see :mod:`nccl_doctor.explain.plain_pickle`.
    """
    raw = _decode(data, source)
    top = {"entries": raw} if isinstance(raw, list) else raw  # torch 2.2 wrote the bare list
    if not isinstance(top, dict) or not isinstance(top.get("entries"), (list, tuple)):
        raise FlightRecorderRefused("not a flight-recorder dump: no list of entries", source)
    try:
        return Dump(
            groups=_groups(top.get("pg_config") or {}),
            entries=msgspec.convert([_modern(item) for item in top["entries"]], tuple[Entry, ...], strict=False),
            source=source,
        )
    except (msgspec.ValidationError, RecursionError) as error:
        raise FlightRecorderRefused(f"not a flight-recorder dump: {error}", source) from error


def _decode(data: bytes, source: str) -> Any:
    if data.lstrip()[:1] not in (b"{", b"["):
        try:
            return plain_pickle.loads(data)
        except plain_pickle.PlainPickleRefused as error:
            raise FlightRecorderRefused(str(error), source) from error
    if len(data) > plain_pickle.MAX_BYTES:
        raise FlightRecorderRefused(
            f"{len(data)} bytes are more than the {plain_pickle.MAX_BYTES} that are read", source
        )
    try:
        return files.from_json(data, object)
    except msgspec.DecodeError as error:
        raise FlightRecorderRefused(f"not JSON: {error}", source) from error


def _modern(entry: Any) -> Any:
    """An entry of any release with today's names; whatever is no entry is left for the type check to refuse."""
    if not isinstance(entry, dict):
        return entry
    modern = {key: value for key, value in entry.items() if value is not None}
    if "collective_seq_id" not in modern and "seq_id" in modern:  # up to 2.3 one sequence for everything
        modern["collective_seq_id"] = modern["seq_id"]
    if "process_group" not in modern:  # up to 2.3; the local id is the same on all ranks that create groups in order
        modern["process_group"] = (str(modern.get("pg_id", 0)), "")
    if "pg_name" in modern and not modern["process_group"][0]:
        modern["process_group"] = (str(modern["pg_name"]), "")
    return modern


_RANK_LIST = re.compile(r"\[\s*(?:\d{1,7}(?:\s*,\s*\d{1,7})*)?\s*\]")


def _groups(config: Any) -> tuple[ProcessGroup, ...]:
    """The process groups of ``pg_config``; a rank list that is not one in plain form is taken as not recorded."""
    if not isinstance(config, dict):
        return ()
    found = []
    for key, value in config.items():
        if isinstance(value, dict):
            ranks = _ranks(value.get("ranks"))
            found.append(ProcessGroup(str(value.get("name", key)), ranks))
    return tuple(found)


def _ranks(text: Any) -> tuple[int, ...] | None:
    if isinstance(text, list) and all(type(item) is int for item in text):
        return tuple(text) or None
    if not isinstance(text, str) or not _RANK_LIST.fullmatch(text):
        return None
    return tuple(int(number) for number in re.findall(r"\d+", text)) or None


NEWEST_KEPT = 256


def thin(dump: Dump) -> Dump:
    """The dump without old finished works: the newest of each group stay, and whatever is still waiting.

    Hundreds of dumps of 2,000 entries would fill gigabytes; where a job hangs is decided by the newest works.
    """
    seen: dict[tuple[str, str], int] = {}
    kept: list[Entry] = []
    for entry in reversed(dump.entries):
        count = seen[entry.process_group] = seen.get(entry.process_group, 0) + 1
        if count <= NEWEST_KEPT or entry.proven_state is State.WAITING:
            kept.append(entry)
    return msgspec.structs.replace(dump, entries=tuple(reversed(kept)))


def collect(files: Iterable[tuple[str, bytes]]) -> tuple[dict[int, Dump], list[FlightRecorderRefused]]:
    """The thinned dumps of many files by rank, and those that could not be read. ``files`` yields (name, content)."""
    dumps: dict[int, Dump] = {}
    refused: list[FlightRecorderRefused] = []
    for name, data in files:
        try:
            rank = rank_of_file(name)
            if rank is None:
                raise FlightRecorderRefused("the file's name does not end in a rank", name)
            if rank in dumps:
                raise FlightRecorderRefused(f"a second dump of rank {rank}, beside {dumps[rank].source}", name)
            dumps[rank] = thin(read(data, name))
        except FlightRecorderRefused as error:
            refused.append(error)
    return dumps, refused
