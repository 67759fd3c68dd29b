"""Horovod: ranks that stall, that finished, or that never came."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.words import last_words, listed_ranks, still_at_work, still_busy
from nccl_doctor.explain.lines import ending, place, ranks_of, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.facts.fold import ranges

# "3: [tensor, tensor ...]", or "! 3: [" of a rank that ends the job
_STALLED_RANK = re.compile(r"(?:^|[>:\s])(\d+)!?: \[")


def _reports(rows: list[Hit]) -> list[list[Hit]]:
    """The rows of each report: they follow each other."""
    reports: list[list[Hit]] = []
    for row in rows:
        if reports and (row.file, row.line - 1) == place(reports[-1][-1]):
            reports[-1].append(row)
        else:
            reports.append([row])
    return reports


def _crosswise(rows: list[Hit]) -> list[Hit]:
    """Two ranks' rows of one report that have no tensor in common: neither is late, each waits for what the other has not."""
    pairs = (pair for report in _reports(rows) for pair in itertools.combinations(report, 2))
    return next(([one, other] for one, other in pairs if not _tensors(one) & _tensors(other)), [])


def _alone(rows: list[Hit]) -> list[Hit]:
    """The row of the one rank of a report that lacks other tensors than all others, who lack the same."""
    for report in _reports(rows):
        for row in report:
            others = [_tensors(other) for other in report if other is not row]
            if len(others) > 1 and set.intersection(*others) and all(map(_tensors(row).isdisjoint, others)):
                return [row]
    return []


def _tensors(row: Hit) -> set[str]:
    """The tensors that a row of Horovod's report names."""
    listed = _STALLED_RANK.split(row.text)[-1].rstrip(" .]")
    return set(listed.split(", "))


@diagnosis
def horovod_stall(case: Case) -> Iterable[Candidate]:
    """Horovod's stall inspector: a rank left the common path, has other tensors or is far behind; or it crashed, as another
    line says. Where it names who is missing, that rank's own lines tell what it does instead. Where all ranks are missing, each
    for other tensors, none of them is late: their code took different ways."""
    hits = case.hits("horovod-stall")
    if not hits or case.course.overcome("horovod-stall") or case.has("segfault", "sigkill"):
        return
    table, rows = {place(hit) for hit in case.hits("horovod-missing-table")}, []
    for row in case.hits("horovod-missing-table-rows"):  # as far as they follow each other: other lines begin alike
        if (row.file, row.line - 1) in table and _STALLED_RANK.search(row.text):
            table.add(place(row))
            rows.append(row)
    # Who waits for the ones of the first report is missing in the next.
    named = [*case.hits("horovod-missing"), *itertools.chain(*_reports(rows)[:1])]
    told = [hit.groups.get("ranks") or _STALLED_RANK.findall(hit.text)[0] for hit in named]
    missing = {int(rank) for text in told for rank in re.findall(r"\d+", text)}
    if crosswise := _alone(rows) or _crosswise(rows):
        which = " and ".join(f"rank {_STALLED_RANK.findall(hit.text)[0]}" for hit in crosswise)
        title = f"Horovod: {which} each lack tensors that the other submitted: they took different branches"
        if len(crosswise) == 1:
            title = f"Horovod: {which} lacks tensors that all others submitted, and they lack its own: it took another branch"
            missing = {int(_STALLED_RANK.findall(crosswise[0].text)[0])}
        cut = any("..." in hit.text for hit in crosswise)  # what is not shown may be in common
        yield Candidate("app.collective-mismatch", 0.6 if cut else 0.8, title, [*crosswise, *hits, *rows], missing)
        return
    said = {place(hit) for hit in named}
    words = [*last_words(case, missing), *still_at_work(case, missing, hits[0])]
    busy = still_busy(hit for hit in words if place(hit) not in said and not _STALLED_RANK.search(hit.text))
    if missing and busy:
        title = (
            f"{listed_ranks(missing)} busy with something else while the others waited: {ending(busy[-1].text, 110)}"
        )
        yield Candidate("app.straggler-timeout", 0.76, title, [*reversed(busy[-4:]), *hits[:2], *named[:2]], missing)
    who = f"rank {ranges(sorted(missing))}" if missing else "a part of the ranks"
    title = f"{who} did not submit tensors that the others wait for (Horovod)"
    yield Candidate("app.collective-mismatch", 0.56, title, [*hits, *rows], missing)


_FINISHED = re.compile(r"\b(?:exiting|finished|stopping|stopped early|end of (?:data|training|epoch))\b", re.I)


@diagnosis
def horovod_rank_finished(case: Case) -> Iterable[Candidate]:
    """Horovod was shut down, as one rank finished or raised: no rank raised anything else, and the one that does not complain
    said last that it is done. Its peers had more to do, or it decided to stop without them."""
    hits = case.hits("horovod-shut-down")
    quiet = set(case.summary.last_of_rank) - ranks_of(hits)
    if not hits or not quiet or case.exceptions.ordinary or case.has("segfault", "sigkill"):
        return
    done = [hit for hit in last_words(case, quiet) if _FINISHED.search(hit.text)]
    if done:
        who = listed_ranks(ranks_of(done)) if ranks_of(done) else "a rank"
        title = f"{who} finished while the others went on: {ending(done[-1].text, 110)}"
        strengths = {"app.uneven-inputs": 0.64, "app.collective-mismatch": 0.56}
        yield from rivals(strengths, title, [done[-1], *hits[:3]], ranks_of(done))


@diagnosis
def horovod_tasks_never_came(case: Case) -> Iterable[Candidate]:
    """horovodrun reached the hosts by ssh, and a host's task never called back: a closed port, an address of the driver that
    host cannot reach, or a task that failed there. The log of the driver does not tell which."""
    hits = case.hits("horovod-start")
    title = "a host's task never reached horovodrun's service: firewall, an address that cannot be reached, or it failed there"
    strengths = {"net.firewall": 0.48, "net.wrong-interface": 0.46, "net.master-unreachable": 0.42}
    yield from rivals(strengths, title, hits, *speakers(hits))
