"""State files beside the logs: flight-recorder dumps and NCCL RAS reports, read and compared into proofs.

Unlike a log, one such file says little; all ranks' dumps, or two reports in a row, say where a job hangs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nccl_doctor.explain import flight_recorder, kinds, plain_pickle, ras
from nccl_doctor.explain.model import InputProblem, Proof
from nccl_doctor.explain.readers import content

# At most one byte more than is ever read, so that the readers can refuse what is too large.
LIMIT = max(plain_pickle.MAX_BYTES, ras.MAX_BYTES) + 1


def read(paths: Sequence[str]) -> tuple[list[Proof], list[InputProblem]]:
    """All proofs that these files give together, and the files that could not be used."""
    problems: list[InputProblem] = []
    found = {path: kinds.kind(head) for path, head in _contents(paths, content.HEAD, problems)}
    dumps, reports = ([path for path in found if found[path] == kind] for kind in ("dump", "ras"))
    return [*_dumps(dumps, problems), *_reports(reports, problems)], problems


def _contents(paths: Iterable[str], limit: int, problems: list[InputProblem]) -> Iterator[tuple[str, bytes]]:
    """The first bytes of each file, decompressed; one after the other, so that only one is in memory."""
    for path in paths:
        try:
            yield path, content.beginning(path, limit)
        except content.InputError as error:
            problems.append(InputProblem(path, str(error)))


def _dumps(paths: list[str], problems: list[InputProblem]) -> Iterator[Proof]:
    for group in _jobs(paths):
        dumps, refused = flight_recorder.collect(_contents(group, LIMIT, problems))
        problems.extend(InputProblem(error.source, error.reason) for error in refused)
        yield from flight_recorder.compare(dumps)


def _jobs(paths: Iterable[str]) -> list[list[str]]:
    """The dumps that belong together: one prefix; where a rank comes twice, one directory as well."""
    by_prefix: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        by_prefix[re.sub(r"\d+(?=\D*$)", "", Path(path).name)].append(path)
    jobs = []
    for group in by_prefix.values():
        ranks = [flight_recorder.rank_of_file(path) for path in group]
        if len(set(ranks)) == len(ranks):
            jobs.append(group)
            continue
        by_directory: dict[str, list[str]] = defaultdict(list)
        for path in group:
            by_directory[str(Path(path).parent)].append(path)
        jobs.extend(by_directory.values())
    return jobs


def _reports(paths: list[str], problems: list[InputProblem]) -> Iterator[Proof]:
    reports = []
    for path, data in _contents(paths, LIMIT, problems):
        try:
            reports.extend(ras.read(data, path))
        except ValueError as error:
            problems.append(InputProblem(path, str(error)))
    yield from _judged(reports)


def of_log(name: str, log: bytes | str) -> list[Proof]:
    """What the RAS reports prove that stand in a log that is at hand."""
    return _judged(ras.read(log.encode() if isinstance(log, str) else log, name))


def _judged(reports: list[ras.Report]) -> list[Proof]:
    return [*ras.conclude(sorted(reports, key=lambda report: report.timestamp))]
