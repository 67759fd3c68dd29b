"""The history file: SQLite, one short transaction per run, so that several runs can append at the same time."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from nccl_doctor.history.model import HostState, Run, Seen, Value

FILE_NAME = "history.sqlite"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x4E444831  # "NDH1": tells our files from other SQLite files
BUSY_S = 10.0
_PARTS: dict[str, type[msgspec.Struct]] = {"host": HostState, "finding": Seen, "value": Value}  # table: a row of it
_SUFFIXES = (".sqlite", ".sqlite3", ".db")
# Write-ahead logging needs memory that all writers share: over a network file system it loses data.
# https://www.sqlite.org/wal.html, section "Overview" (2026-11)
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "afs", "weka", "glusterfs")
_TABLES = (
    "CREATE TABLE run (id INTEGER PRIMARY KEY, created TEXT NOT NULL, tool TEXT NOT NULL, command TEXT NOT NULL,"
    " verdict TEXT NOT NULL, go INTEGER, stages TEXT NOT NULL)",
    "CREATE TABLE host (run INTEGER NOT NULL REFERENCES run, host TEXT NOT NULL, state TEXT NOT NULL,"
    " measured INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (run, host)) WITHOUT ROWID",
    "CREATE TABLE finding (run INTEGER NOT NULL REFERENCES run, id TEXT NOT NULL, severity TEXT NOT NULL,"
    " host TEXT NOT NULL, gpu TEXT NOT NULL, nic TEXT NOT NULL, stage TEXT NOT NULL, sure INTEGER NOT NULL)",
    "CREATE TABLE value (run INTEGER NOT NULL REFERENCES run, host TEXT NOT NULL, name TEXT NOT NULL,"
    " value REAL NOT NULL, unit TEXT NOT NULL, higher_is_better INTEGER NOT NULL)",
    "CREATE INDEX finding_run ON finding (run)",
    "CREATE INDEX value_run ON value (run)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class HistoryError(Exception):
    """A history that cannot be read or written; the message names the file and the reason."""


def file_of(path: Path) -> Path:
    """The SQLite file that ``path`` means: a directory holds ``history.sqlite``; other paths are the file itself."""
    # Of a Path, too long a name would be an error here, and the run lost that is to be kept.
    is_file = os.path.isfile(path) or (not os.path.exists(path) and path.suffix in _SUFFIXES)  # noqa: PTH110, PTH113
    return path if is_file else path / FILE_NAME


def append(path: Path, run: Run) -> None:
    """Add a run, all of it or nothing; ``HistoryError`` if that cannot be done. The file is created if need be.

    The same run, judged again (``--from``), takes its own place: counted twice, one failure would be two. Judged by some of
    its stages alone it changes nothing: what the others told would be lost.
    """
    file = file_of(path)
    try:
        if file != path:
            if os.path.lexists(path) and not path.is_dir():
                raise HistoryError(f"{path}: is neither a file nor a directory")
            path.mkdir(parents=True, exist_ok=True)
        elif not file.parent.is_dir():
            raise HistoryError(f"{file}: there is no directory {file.parent}")
        with contextlib.closing(sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)) as base:
            if _has_tables(base):
                _check(base, file)  # before anything of another program's file is changed
            if _mounted_on(file) == "local":
                with contextlib.suppress(sqlite3.OperationalError):  # another run is writing: it has set the mode
                    base.execute("PRAGMA journal_mode = WAL")
            base.execute("BEGIN IMMEDIATE")
            _prepare(base, file)
            same = _same(base, run)
            if not any(set(run.stages) < stages for stages in same.values()):
                _remove(base, same)
                _insert(base, run)
            base.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(f"{file}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    said = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return said.replace(
        "file is not a database", "is no history: a history is what --history PATH of check or preflight wrote"
    )


def _mounted_on(file: Path) -> str:
    """``local``, or ``network`` where the file's file system is one, or cannot be told."""
    place = str(file.resolve().parent)
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "network"
    for line in mounts.splitlines():
        words = line.split(" ")
        mount = words[1].replace("\\040", " ") if len(words) > 2 else ""
        if mount and len(mount) >= len(best) and (place == mount or place.startswith(mount.rstrip("/") + "/")):
            best, kind = mount, words[2]
    return "network" if not kind or kind.startswith(_NETWORK) else "local"


def _prepare(base: sqlite3.Connection, file: Path) -> None:
    """Make the tables of a new file; refuse a file that is not ours, or newer than we are."""
    if not _has_tables(base):
        for statement in _TABLES:
            base.execute(statement)
    _check(base, file)


def _has_tables(base: sqlite3.Connection) -> bool:
    return bool(base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _check(base: sqlite3.Connection, file: Path) -> None:
    if base.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise HistoryError(f"{file}: not a history of nccl-doctor (another program's SQLite file)")
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise HistoryError(f"{file}: schema {version}; this nccl-doctor knows schema {SCHEMA_VERSION}")


def _same(base: sqlite3.Connection, run: Run) -> dict[int, set[str]]:
    """What is kept of the same measurement (of that moment, those hosts, and some of these stages): its number -> its stages."""
    found = {}
    kept = base.execute("SELECT id, stages FROM run WHERE created = ?", (run.created,)).fetchall()
    for number, text in kept:
        stages = set(json.loads(text))
        if stages.isdisjoint(run.stages) and (stages or run.stages):
            continue
        if {host for (host,) in base.execute("SELECT host FROM host WHERE run = ?", (number,))} == run.together:
            found[number] = stages
    return found


def _remove(base: sqlite3.Connection, runs: Iterable[int]) -> None:
    for number in runs:
        base.execute("DELETE FROM run WHERE id = ?", (number,))
        for table in _PARTS:
            base.execute(f"DELETE FROM {table} WHERE run = ?", (number,))


def _insert(base: sqlite3.Connection, run: Run) -> None:
    number = base.execute(
        "INSERT INTO run (created, tool, command, verdict, go, stages) VALUES (?, ?, ?, ?, ?, ?)",
        (run.created, run.tool, run.command, run.verdict, run.go, json.dumps(run.stages)),
    ).lastrowid
    for table, items in (("host", run.hosts), ("finding", run.findings), ("value", run.values)):
        holders = ", ".join("?" * (1 + len(_PARTS[table].__struct_fields__)))
        rows = [(number, *msgspec.structs.astuple(item)) for item in items]
        base.executemany(f"INSERT INTO {table} VALUES ({holders})", rows)


def read(path: Path) -> tuple[Run, ...]:
    """All runs, oldest first; ``HistoryError`` for a path that is no history. Nothing is written."""
    file = file_of(path)
    if not os.path.isfile(file):  # noqa: PTH113 - as above
        raise HistoryError(f"{file}: there is no history yet (`nccl-doctor check --history {path}` makes one)")
    try:
        with contextlib.closing(sqlite3.connect(_reading(file), uri=True, timeout=BUSY_S)) as base:
            base.execute("BEGIN")  # one state of the file for all queries
            if not _has_tables(base):  # what a full disk leaves behind
                return ()
            _check(base, file)
            return tuple(_runs(base))
    except (sqlite3.Error, OSError, ValueError) as error:
        raise HistoryError(f"{file}: {_reason(error)}") from error


def _reading(file: Path) -> str:
    """The URI that reads without writing. A write-ahead file needs a place beside it, unless nobody can be writing."""
    still = not os.access(file.resolve().parent, os.W_OK) and not Path(f"{file.resolve()}-wal").exists()
    return f"{file.resolve().as_uri()}?mode=ro" + ("&immutable=1" if still else "")


def _runs(base: sqlite3.Connection) -> Iterator[Run]:
    """The runs of the file; ``ValueError`` for a value that nobody could have written: SQLite keeps any type anywhere."""
    parts: dict[str, dict[int, list[dict[str, object]]]] = {}
    for table, kind in _PARTS.items():
        names = kind.__struct_fields__
        for number, *row in base.execute(f"SELECT run, {', '.join(names)} FROM {table} ORDER BY run, host, {names[0]}"):
            parts.setdefault(table, {}).setdefault(number, []).append(dict(zip(names, row, strict=True)))
    query = "SELECT id, created, tool, command, verdict, go, stages FROM run ORDER BY created, id"
    for number, created, tool, command, verdict, go, stages in base.execute(query):
        lists = {f"{table}s": parts.get(table, {}).get(number, []) for table in _PARTS}
        row = {"created": created, "tool": tool, "command": command, "verdict": verdict, "go": go}
        try:
            run = msgspec.convert({**row, "stages": json.loads(stages), **lists}, Run, strict=False)
            if not all(math.isfinite(value) for value in (run.day, *(item.value for item in run.values))):
                raise ValueError("a number that is not finite")
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise ValueError(f"run {number} cannot be read: {error}") from error
        yield run
