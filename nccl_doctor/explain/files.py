"""Read many files at once, in several processes, and explain them together."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import msgspec

from nccl_doctor.explain import snapshots
from nccl_doctor.explain.api import explain
from nccl_doctor.explain.model import Explanation, InputProblem
from nccl_doctor.explain.readers import inputs
from nccl_doctor.explain.readers.scan import plan, scan
from nccl_doctor.explain.summary import Summary

SMALL = 8 << 20  # less than this in all is read in this process


def read_file(file: inputs.LogFile) -> Summary:
    """One file's summary; what went wrong with it is in ``problems``."""
    state = snapshots.kind(file.path)
    if state == "dump":
        return Summary(files=1, bytes=file.size, dumps=[file.path])
    problems: list[InputProblem] = []

    def guarded() -> Iterator[bytes]:
        try:
            yield from inputs.pieces(file.path)
        except inputs.InputError as error:
            problems.append(InputProblem(file.name, str(error)))

    source = msgspec.structs.replace(inputs.open_source(file), lines=guarded())
    summary = scan(source)
    summary.problems.extend(problems)
    if state:  # a RAS report is text, and may stand in the middle of a job's output
        summary.dumps.append(file.path)
    if problems and not summary.bytes:
        summary.files = 0
    return summary


def _encoded(file: inputs.LogFile) -> bytes:
    return msgspec.msgpack.encode(_without_surrogates(read_file(file)))


def _without_surrogates(summary: Summary) -> Summary:
    """Undecodable bytes travel as escapes: msgpack text must be UTF-8."""
    try:
        msgspec.msgpack.encode(summary)
    except UnicodeEncodeError:
        return msgspec.convert(_clean(msgspec.to_builtins(summary)), Summary)
    return summary


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def read_all(
    files: list[inputs.LogFile], workers: int | None = None, progress: Callable[[int], None] | None = None
) -> Summary:
    """All files' summaries, merged in the order of ``files`` whatever process finished first."""
    total = Summary()
    size = sum(file.size for file in files)
    count = min(workers or os.cpu_count() or 1, len(files))
    if size < SMALL or count <= 1:
        for file in files:
            total.merge(read_file(file))
            if progress:
                progress(file.size)
        return total
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    plan()  # built once, before the processes part
    chunk = max(1, min(16, len(files) // (count * 8)))
    with context.Pool(count) as pool:
        for file, data in zip(files, pool.imap(_encoded, files, chunksize=chunk), strict=True):
            total.merge(msgspec.msgpack.decode(data, type=Summary))
            if progress:
                progress(file.size)
    return total


def explain_paths(
    names: list[str], workers: int | None = None, progress: Callable[[int], None] | None = None
) -> Explanation:
    """Explain files, directories and globs; ``-`` is standard input."""
    wanted = [name for name in names if name != "-"]
    files, problems = inputs.find(wanted)
    summary = read_all(files, workers, progress)
    if "-" in names:
        summary.merge(scan(inputs.stdin_source()))
    summary.proofs, refused = snapshots.read(summary.dumps)
    summary.problems = [*problems, *summary.problems, *refused]
    return explain(summary)
