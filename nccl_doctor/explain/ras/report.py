"""One snapshot of a job as NCCL's RAS threads saw it, read from the text or the JSON form of ``ncclras``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from nccl_doctor.explain.readers import records

MAX_BYTES = 64 << 20
_LINE_LIMIT = 8 << 10


class Worker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rank or a process that a report names. ``rank`` counts within its communicator; ``node`` is an address."""

    text: str
    line: int = 0
    rank: int | None = None
    pid: int | None = None
    node: str = ""
    gpu: str = ""
    error: str = ""


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ranks of one communicator that agree: on a status (told in the text only), or on how many operations they launched.

    ``workers`` are named by NCCL only where the side is small (at most 25 % of the ranks and 10 of them).
    """

    count: int
    text: str
    line: int = 0
    operation: int | None = None
    workers: tuple[Worker, ...] = ()


class Mismatch(msgspec.Struct, frozen=True):
    """A communicator whose ranks differ: in the count of ``function`` (``AllReduce``; up to 2.25 ``collective``)."""

    communicator: str
    function: str  # "status" for a difference in status
    sides: tuple[Side, ...]


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """One snapshot. Every worker and side keeps the line it was read from (0 in JSON)."""

    timestamp: str = ""
    source: str = ""
    complete: bool = True  # False: the text breaks off before its Warnings, or accuses somebody who could not be read
    dead: tuple[Worker, ...] = ()
    silent: tuple[Worker, ...] = ()  # processes whose RAS thread did not answer
    missing_ranks: dict[str, tuple[Worker, ...]] = {}  # communicator -> its ranks of which nothing is known
    errors: dict[str, tuple[Worker, ...]] = {}
    mismatches: tuple[Mismatch, ...] = ()
    timeouts: int = 0
    timeouts_text: str = ""
    counts: dict[str, dict[str, dict[int, int]]] = {}  # JSON: communicator -> function -> rank -> operations


def read(data: bytes, source: str = "") -> list[Report]:
    """All snapshots in a file, in its order; an empty list if there is none. ``ValueError`` if it is too large."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{source}: {len(data)} bytes are more than the {MAX_BYTES} that are read")
    if data.lstrip().startswith(b"{"):
        documents = [_from_json(item, source) for item in _documents(data.decode("utf-8", "replace"))]
        if documents:
            return documents
    return [_TextReader(source).read(part) for part in _snapshots(data)]


# Text.

_VERSION = re.compile(r"NCCL version \S{1,40} compiled with CUDA")
_RESULT = r"[A-Za-z]{1,20}(?: [A-Za-z]{1,20}){0,4}"
_MANAGED_BY = r"GPU (?P<gpu>[^m]{1,40}) managed by process (?P<pid>\d{1,10}) on node (?P<node>\S{1,100})"
_RANK = re.compile(
    r"  Rank (?P<rank>\d{1,9})(?: has launched up to operation (?P<operation>\d{1,19})|"
    r"(?P<none> has not launched any operations)| has status (?P<status>\w{1,20})|"
    rf" reported (?P<error>{_RESULT}))?(?: -- (?:{_MANAGED_BY}|\[.*))?"
)
_PROCESS = re.compile(r"  Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,100}) managing GPUs? (?P<gpu>.{1,80})")
_SIDE = re.compile(
    r"  (?P<count>\d{1,9}) (?:ranks have|rank has) (?:launched up to operation (?P<operation>\d{1,19})|"
    r"(?P<none>not launched any operations)|status (?P<status>\w{1,20}))"
)
_REPORTED = re.compile(rf"  \d{{1,9}} ranks reported (?P<error>{_RESULT})")
_COMMUNICATOR = re.compile(r"#\d{1,9}-\d{1,9} \((?P<hash>[0-9a-f]{1,16})\) (?P<kind>INCOMPLETE|ERROR|MISMATCH)\s*")
_DIFFERENT = re.compile(r"  Communicator ranks have different (?:(?P<function>\w{1,40}) operation counts|status)\s*")
_DIFFERS = "  Communicator "  # in what, is told in words that are not known
_TIMEOUTS = re.compile(r"  Encountered (?P<count>\d{1,9}) communication timeouts?")


def _snapshots(data: bytes) -> Iterator[list[tuple[int, str]]]:
    """The numbered lines of each report, without what a launcher or collector put before all of them.

    A report begins with the library's version.
    """
    part: list[tuple[int, str]] = []
    cut = 0
    numbered = (
        (number, line) for number, raw in enumerate(data.split(b"\n"), 1) for line in records.texts(raw[:_LINE_LIMIT])
    )
    for number, line in numbered:
        found = _VERSION.search(line)
        if found:
            if part:
                yield part
            part, cut = [], found.start()
        elif not part:
            continue
        part.append((number, line[cut:]))
    if part:
        yield part


class _TextReader:
    """Reads one text report, section by section."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.section = ""
        self.communicator = ""
        self.error = ""
        self.complete = False
        self.accused: set[tuple[str, str]] = set()  # sections that accuse, and their communicators, that were begun
        self.timeouts = (0, "")
        # By section and communicator, which is empty where a section is about processes.
        self.workers: dict[str, dict[str, list[Worker]]] = {"DEAD": {}, "INCOMPLETE": {}, "ERROR": {}}
        self.mismatches: list[tuple[str, str, list[Side]]] = []

    def read(self, lines: list[tuple[int, str]]) -> Report:
        for number, line in lines:
            self._line(number, line)
        unread = any(not self._has_read(section, communicator) for section, communicator in self.accused)
        return Report(
            source=self.source,
            complete=self.complete and not unread,
            dead=tuple(self.workers["DEAD"].get("", ())),
            silent=tuple(self.workers["INCOMPLETE"].pop("", ())),
            missing_ranks={name: tuple(items) for name, items in self.workers["INCOMPLETE"].items()},
            errors={name: tuple(items) for name, items in self.workers["ERROR"].items()},
            mismatches=tuple(Mismatch(name, function, tuple(sides)) for name, function, sides in self.mismatches),
            timeouts=self.timeouts[0],
            timeouts_text=self.timeouts[1],
        )

    def _has_read(self, section: str, communicator: str) -> bool:
        """Whether somebody was read of whom a section accuses; of a difference that is two sides of each."""
        if section == "MISMATCH":
            found = [sides for name, _, sides in self.mismatches if name == communicator]
            return bool(found) and all(len(sides) > 1 for sides in found)
        return bool(self.workers[section].get(communicator))

    def _line(self, number: int, line: str) -> None:
        if not line.startswith("  "):
            self._heading(line)
        elif self.section == "MISMATCH":
            self._mismatch_line(number, line)
        elif self.section == "TIMEOUT":
            found = _TIMEOUTS.match(line)
            self.timeouts = (int(found.group("count")), line.strip()) if found else self.timeouts
        elif self.section in self.workers:
            self._worker_line(number, line)

    def _heading(self, line: str) -> None:
        communicator = _COMMUNICATOR.fullmatch(line)
        if communicator:
            self.section, self.communicator, self.error = communicator.group("kind"), communicator.group("hash"), ""
        elif line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self.section, self.communicator = line.strip(), ""
        elif line.startswith(("Group ", "Errors")):
            self.section = ""
        elif line.startswith("Warnings"):
            self.section, self.complete = "", True
        if self.section == "MISMATCH" or self.section in self.workers:
            self.accused.add((self.section, self.communicator))

    def _worker_line(self, number: int, line: str) -> None:
        reported = _REPORTED.match(line)
        if reported:
            self.error = reported.group("error").strip()
            return
        worker = _worker(number, line, self.error)
        if worker is not None:
            self.workers[self.section].setdefault(self.communicator, []).append(worker)

    def _mismatch_line(self, number: int, line: str) -> None:
        different = _DIFFERENT.fullmatch(line)
        if different or line.startswith(_DIFFERS):
            function = (different.group("function") or "status") if different else "operation"
            self.mismatches.append((self.communicator, function, []))
            return
        if not self.mismatches:
            return
        sides = self.mismatches[-1][2]
        head = _SIDE.match(line) or _RANK.match(line)
        if head is None:
            return
        worker = _worker(number, line, "")
        operation = 0 if head.group("none") else _number(head.group("operation"))
        # "Rank 3 -- GPU ..." belongs to the line above it.
        if worker is not None and operation is None and not head.group("status"):
            if sides:
                sides[-1] = msgspec.structs.replace(sides[-1], workers=(*sides[-1].workers, worker))
            return
        count = 1 if worker is not None else int(head.group("count"))
        sides.append(Side(count, line.strip(), number, operation, (worker,) if worker else ()))


def _worker(number: int, line: str, error: str) -> Worker | None:
    rank = _RANK.match(line)
    if rank:
        gpu, pid, node = rank.group("gpu") or "", _number(rank.group("pid")), rank.group("node") or ""
        said = (rank.group("error") or error).strip()
        return Worker(line.strip(), number, int(rank.group("rank")), pid, node, gpu.strip(), said)
    process = _PROCESS.match(line)
    if process:
        gpu = process.group("gpu").strip()
        return Worker(line.strip(), number, None, int(process.group("pid")), process.group("node"), gpu)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text else None


# JSON.


class _RankStatus(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = -1
    status: _RankStatus = msgspec.field(default_factory=_RankStatus)
    collective_counts: dict[str, int] = {}


class _Communicator(msgspec.Struct):
    hash: str
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Ras(msgspec.Struct):
    timeouts_count: int = 0


class _Document(msgspec.Struct):
    nccl_version: str
    communicators: list[_Communicator]
    timestamp: str = ""
    ras: _Ras = msgspec.field(default_factory=_Ras)


# ncclResult_t, in the words of the text form.
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
_IN_PROGRESS = 7


def _documents(text: str) -> Iterator[_Document]:
    """The JSON documents of a file, one after the other; the first that is not one ends it."""
    decoder = json.JSONDecoder()
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        try:
            raw, position = decoder.raw_decode(text, position)
            yield msgspec.convert(raw, _Document)
        except (ValueError, RecursionError):  # msgspec.ValidationError is a ValueError
            return


def _from_json(document: _Document, source: str) -> Report:
    dead: dict[int, Worker] = {}
    silent: dict[int, Worker] = {}
    missing: dict[str, tuple[Worker, ...]] = {}
    errors: dict[str, tuple[Worker, ...]] = {}
    mismatches: list[Mismatch] = []
    counts: dict[str, dict[str, dict[int, int]]] = {}
    for communicator in document.communicators:
        name = communicator.hash.removeprefix("0x")
        absent = [(item, _json_worker(item)) for item in communicator.missing_ranks]
        dead.update({item.pid: worker for item, worker in absent if item.status.considered_dead})
        silent.update({item.pid: worker for item, worker in absent if item.status.unresponsive})
        failed = tuple(_json_worker(item) for item in communicator.ranks if _error(item))
        missing.update({name: tuple(worker for _, worker in absent)} if absent else {})
        errors.update({name: failed} if failed else {})
        counts[name] = _counts(communicator)
        mismatches.extend(_json_mismatches(name, communicator, counts[name]))
    return Report(
        timestamp=document.timestamp,
        source=source,
        dead=tuple(dead.values()),
        silent=tuple(worker for pid, worker in silent.items() if pid not in dead),
        missing_ranks=missing,
        errors=errors,
        mismatches=tuple(mismatches),
        timeouts=document.ras.timeouts_count,
        timeouts_text=f'"timeouts_count": {document.ras.timeouts_count}' if document.ras.timeouts_count else "",
        counts=counts,
    )


def _error(item: _Rank) -> str:
    for code in (item.status.async_error, item.status.init_state):
        if code not in (0, _IN_PROGRESS):
            return _RESULTS.get(code, "Unexpected error")
    return ""


def _status(item: _Rank) -> str:
    if item.status.abort_flag:
        return "ABORT"
    if item.status.finalize_called or item.status.destroy_flag:
        return "FINALIZE"
    return "RUNNING" if item.status.init_state == 0 else "INIT"


def _json_worker(item: _Rank) -> Worker:
    status = {key: value for key, value in msgspec.to_builtins(item.status).items() if value}
    text = f'"rank": {item.rank}, "host": "{item.host}", "pid": {item.pid}, "cuda_dev": {item.cuda_dev}'
    shown = f"{text}, status {json.dumps(status)}" if status else text
    return Worker(shown, 0, item.rank, item.pid, item.host, str(item.cuda_dev), _error(item))


def _counts(communicator: _Communicator) -> dict[str, dict[int, int]]:
    functions = sorted({name for item in communicator.ranks for name in item.collective_counts})
    return {name: {item.rank: item.collective_counts.get(name, 0) for item in communicator.ranks} for name in functions}


def _json_mismatches(name: str, communicator: _Communicator, counts: dict[str, dict[int, int]]) -> Iterator[Mismatch]:
    """The differences that the text form would list."""
    values: dict[str, dict[int, Any]] = {"status": {item.rank: _status(item) for item in communicator.ranks}, **counts}
    workers = {item.rank: _json_worker(item) for item in communicator.ranks}
    for function, by_rank in values.items():
        sides: dict[Any, list[int]] = {}
        for rank, value in by_rank.items():
            sides.setdefault(value, []).append(rank)
        if len(sides) < 2:
            continue
        ordered = sorted(sides.items(), key=lambda item: (-len(item[1]), str(item[0])))
        yield Mismatch(name, function, tuple(_json_side(function, value, ranks, workers) for value, ranks in ordered))


def _json_side(function: str, value: Any, ranks: list[int], workers: dict[int, Worker]) -> Side:
    named = tuple(workers[rank] for rank in sorted(ranks))
    if function == "status":
        return Side(len(ranks), f"{len(ranks)} ranks have status {value}", workers=named)
    return Side(len(ranks), f'{len(ranks)} ranks with "{function}": {value}', operation=value, workers=named)
