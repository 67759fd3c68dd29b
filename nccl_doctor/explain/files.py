"""Read many files at once, in several processes, and explain them together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import msgspec

from nccl_doctor.explain import kinds
from nccl_doctor.explain.model import Explanation, InputProblem, LogSource
from nccl_doctor.explain.numbering import numbered
from nccl_doctor.explain.printable import printable
from nccl_doctor.explain.readers import content, inputs
from nccl_doctor.explain.readers.newest_first import stands_newest_first
from nccl_doctor.explain.readers.plan import plan
from nccl_doctor.explain.readers.scan import PIECE, scan, scan_descriptor
from nccl_doctor.explain.readers.wrapped import wrapping
from nccl_doctor.explain.summary import Skip, Summary

SMALL = 8 << 20  # less than this in all is read in this process
STDIN_HELD = 8 << 20  # RAS reports are read out of standard input up to this size


def read_file(file: inputs.LogFile) -> Summary:
    """One file's summary; what went wrong with it is in ``problems``."""
    if file.name.endswith(inputs.BUNDLE):
        return Summary(files=1, bytes=file.size, bundles=[file.path])
    source = LogSource(file.name, b"", file.rank, file.host)
    try:
        with content.opened(file.path) as raw:
            head = raw.read(content.HEAD)
            packed = content.unpacker(head) is not None
            if packed:
                head = _unpacked_head(file.path)
            state = kinds.kind(head)
            if state == "dump":
                return Summary(files=1, bytes=file.size, dumps=[file.path])
            content.require_text(head)
            copied = content.has_hard_blanks(head) or wrapping(head) or stands_newest_first(head)
            if packed or content.utf16(head) or copied:
                summary = _read_pieces(source, content.pieces(file.path))
            else:
                raw.seek(0)
                summary = scan_descriptor(source, raw.fileno())
    except (content.InputError, OSError) as error:
        return Summary(problems=[InputProblem(file.name, str(error))])
    if state or "ras-report" in summary.groups:  # a RAS report is text, and may stand in the middle of a job's output
        summary.dumps.append(file.path)
    if summary.bytes and not summary.groups and not any(summary.tails.values()):
        summary.bytes = 0
        summary.problems.append(
            InputProblem(file.name, "holds nothing but blanks, NULs, or what nccl-doctor itself printed")
        )
    return summary


def _unpacked_head(path: str) -> bytes:
    try:
        return content.beginning(path, content.HEAD)
    except content.InputError:
        return b""  # it is told when the file is read


def _read_pieces(source: LogSource, pieces: Iterator[bytes]) -> Summary:
    """What has to be unpacked or decoded; what can be read of a damaged one is used."""
    problems: list[InputProblem] = []

    def guarded() -> Iterator[bytes]:
        try:
            yield from pieces
        except content.InputError as error:
            problems.append(InputProblem(source.name, str(error)))

    summary = scan(msgspec.structs.replace(source, content=content.text_pieces(guarded())))
    summary.problems.extend(problems)
    if problems and not summary.bytes:
        summary.files = 0
    return summary


def _read_stdin() -> Summary:
    """Standard input, with what the RAS reports in it prove, if it is short enough to be held in memory."""
    held = bytearray()

    def pieces() -> Iterator[bytes]:
        for piece in content.stdin_pieces():
            if len(held) <= STDIN_HELD:
                held.extend(piece)
            yield piece

    summary = _read_pieces(LogSource("stdin", b""), pieces())
    if "ras-report" in summary.groups and len(held) <= STDIN_HELD:
        from nccl_doctor.explain import snapshots

        summary.proofs += snapshots.of_log("stdin", bytes(held))
    return summary


def reasoning() -> Callable[[Summary], Explanation]:
    """The function that explains a summary. What it needs takes as long to import as a gigabyte takes to read."""
    from nccl_doctor.explain import api, diagnoses

    diagnoses.all_diagnoses()
    return api.explain


def _encoded(file: inputs.LogFile) -> bytes:
    """One file's summary, to be sent. Bytes that are no text travel as escapes: msgpack's text must be UTF-8."""
    summary = read_file(file)
    try:
        return msgspec.msgpack.encode(summary)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(printable(msgspec.to_builtins(summary)))


def read_all(
    files: list[inputs.LogFile], workers: int | None = None, meanwhile: Callable[[], object] | None = None
) -> Summary:
    """All files' summaries, merged in the order of ``files`` whatever process finished first."""
    total = Summary()
    size = sum(file.size for file in files)
    count = min(workers or os.cpu_count() or 1, len(files))
    if size < SMALL or count <= 1:
        for file in files:
            total.merge(read_file(file))
        return total
    # Imported only where there is much to read: they take as long as a small log.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    plan()  # built once, before the processes part
    done = 0
    with ProcessPoolExecutor(count, context) as pool, contextlib.suppress(BrokenProcessPool):
        summaries = pool.map(_encoded, files, chunksize=max(1, min(16, len(files) // (count * 16))))
        reasoning()  # imported while the others read
        if meanwhile:
            meanwhile()
        for data in summaries:
            total.merge(msgspec.msgpack.decode(data, type=Summary))
            done += 1
    for file in files[done:]:  # a process was killed, most likely for want of memory
        total.merge(read_file(file))
    return total


def explain_paths(
    names: list[str], workers: int | None = None, meanwhile: Callable[[], object] | None = None
) -> Explanation:
    """Explain files, directories and globs; ``-`` is standard input. ``meanwhile`` is called while processes read."""
    wanted = [name for name in names if name != "-"]
    files, problems = inputs.find(wanted)
    summary = read_all(files, workers, meanwhile)
    if "-" in names:
        summary.merge(_read_stdin())
    summary.problems = [*problems, *summary.problems]
    if summary.dumps:
        from nccl_doctor.explain import snapshots

        proofs, refused = snapshots.read(summary.dumps)
        summary.proofs += proofs
        summary.problems += refused
    explanation = reasoning()(summary)
    explanation = msgspec.structs.replace(explanation, saved_runs=tuple(summary.bundles))
    return number_lines(explanation, summary.skipped)


def number_lines(explanation: Explanation, skipped: dict[str, list[Skip]]) -> Explanation:
    """The same with the true line numbers: the lines that were passed over are counted in the files that are quoted."""
    if not skipped:
        return explanation
    counted: dict[str, list[tuple[int, int]]] = {}

    def true_line(name: str, line: int) -> int | None:
        if name not in counted:
            counted[name] = _surplus(name, skipped[name])
        found = counted[name]
        if not found:
            return None  # the file is gone, or shorter than it was
        return line - sum(surplus for start, surplus in found if line > start)

    told = numbered(explanation, skipped, true_line)
    return msgspec.structs.replace(told, read=msgspec.structs.replace(told.read, lines=None))


def _surplus(name: str, skips: list[Skip]) -> list[tuple[int, int]]:
    """After which line, as numbered so far, numbers are too high, and by how much. Empty if the file cannot be read."""
    found = []
    buffer = bytearray(PIECE)
    try:
        with content.opened(name) as raw:
            for skip in skips:
                raw.seek(skip.offset)
                lines = 0
                for left in range(skip.size, 0, -PIECE):
                    wanted = min(left, PIECE)
                    if os.readv(raw.fileno(), [memoryview(buffer)[:wanted]]) < wanted:
                        return []
                    lines += buffer.count(b"\n", 0, wanted)
                found.append((skip.line, skip.size - lines))
    except (content.InputError, OSError):
        return []
    return found
