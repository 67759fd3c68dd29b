"""Ranks that diverged: who is behind, who ran ahead, who called something else."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.words import (
    NEAR,
    NO_DATA,
    gave_up,
    last_words,
    listed_ranks,
    names_rank,
    ranks_named,
    slower,
    still_at_work,
    still_busy,
)
from nccl_doctor.explain.hang import GAVE_UP
from nccl_doctor.explain.lines import ending, hosts_of, in_order, just_below, later, ranks_of, shape, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.watchdogs import ASYMMETRIC, Work, absent


def _groups(case: Case) -> dict[str, list[Work]]:
    table: dict[str, list[Work]] = defaultdict(list)
    for item in case.work:
        table[item.group].append(item)
    return table


_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d+), )?OpType=(\w+)(?:, TensorShape=\[([\d, ]*)\])?"
)


@diagnosis
def one_differs_from_all_others(case: Case) -> Iterable[Candidate]:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL each rank tells its own call and one that differs: the ranks of the rarest call differ from
    the others."""
    calls: dict[int, tuple[str, ...]] = {}
    told = case.hits("fingerprint-mismatch")
    for hit in told:
        calls.update((int(found[0]), tuple(found[1:])) for found in _FINGERPRINT.findall(hit.text))
    counts = Counter(calls.values()).most_common()
    if len(counts) == 2 and counts[0][1] > counts[1][1]:
        (usual, _), (rare, _) = counts
        ranks = {rank for rank, call in calls.items() if call == rare}
        own = [hit for hit in told if hit.rank in ranks]
        title = (
            f"the ranks issued different collectives: {_told(rare)} here, {_told(usual)} on the {counts[0][1]} others"
        )
        yield Candidate(
            "app.collective-mismatch", 0.98, title, [*own, *(hit for hit in told if hit.rank not in ranks)], ranks
        )


def _told(call: tuple[str, ...]) -> str:
    sequence, operation, shape = call
    return f"{operation}{f' of [{shape}]' if shape else ''}{f' as number {sequence}' if sequence else ''}"


@diagnosis
def different_calls(case: Case) -> Iterable[Candidate]:
    """Watchdogs of one process group name different operations or sizes at the same sequence number.

    All ranks of a group must issue the same collectives in the same order; the same number with another OpType or element
    count proves that they did not. Point-to-point work (SEND, RECV) and rooted operations are left out: their sides differ.
    """
    for items in _groups(case).values():
        by_sequence: dict[int, list[Work]] = defaultdict(list)
        for item in items:
            if item.sequence >= 0 and item.operation:
                by_sequence[item.sequence].append(item)
        for sequence, same in sorted(by_sequence.items()):
            kinds = Counter((item.operation, _comparable(item)) for item in same if item.operation not in ASYMMETRIC)
            if len(kinds) < 2:
                continue
            common = kinds.most_common(1)[0][0]
            odd = [item for item in same if (item.operation, _comparable(item)) != common]
            hits = [item.hit for item in [*odd, *same] if item.hit]
            words = last_words(case, {item.rank for item in same})
            done = [hit for hit in words if _EPOCH_DONE.search(hit.text)]
            if done:
                title = "one rank had finished its epoch while another was still in it: they have different numbers of batches"
                proof = [*done, *words[-4:], *hits]
                yield Candidate("app.uneven-inputs", 0.7, title, proof, ranks_of(done), final=True)
            names = " / ".join(sorted({f"{op} {shape}".strip() for op, shape in kinds}))
            title = f"at work {sequence} the ranks are in different collectives: {names[:160]}"
            proof = [*hits[:2], *words[-6:], *hits[2:]]
            yield Candidate("app.collective-mismatch", 0.93, title, proof, {item.rank for item in odd}, final=True)
            return


_IN_PAIRS = frozenset(("Send", "Recv"))
_CALL = ("operation", "count", "type", "op", "root")


@diagnosis
def different_calls_in_nccl(case: Case) -> Iterable[Candidate]:
    """Processes of one communicator call different collectives, or sizes, under one opCount of NCCL's own lines.

    These lines name a communicator by its address, which each process has for itself: only processes with one communicator of
    a size are compared, no more of them than it has ranks. They can still be of two communicators: that they agreed before,
    or that the size is the whole job's, says that they are not.
    """
    calls: dict[str, dict[tuple[str, str, str], dict[str, dict[int, Hit]]]] = {}
    for hit in case.hits("collective-call"):
        by_process = calls.setdefault(hit.groups["nranks"], {})
        by_number = by_process.setdefault((hit.file if not hit.pid else "", hit.host, hit.pid), {})
        by_number.setdefault(hit.groups["comm"], {}).setdefault(int(hit.groups["number"], 16), hit)
    for size, processes in calls.items():
        if len(processes) > int(size) or any(len(comms) > 1 for comms in processes.values()):
            continue
        tables = [table for comms in processes.values() for table in comms.values()]
        one = int(size) == case.world
        for number in sorted({number for table in tables for number in table}):
            here = [table[number] for table in tables if number in table]
            kinds = Counter(tuple(hit.groups[name] for name in _CALL) for hit in here)
            if len(kinds) < 2 or any(kind[0] in _IN_PAIRS for kind in kinds):
                one = one or len(kinds) == 1 < len(here)
                continue
            names = " / ".join(sorted({f"{kind[0]} of {kind[1]}" for kind in kinds}))
            usual, often = kinds.most_common(1)[0]
            odd = [hit for hit in here if tuple(hit.groups[name] for name in _CALL) != usual]
            hits = [*odd[:2], *(hit for hit in here if hit not in odd)][:4]
            title = f"at opCount {number:x} the ranks are in different collectives: {names[:160]}"
            who = speakers(odd if often > len(odd) else here)
            evidence = [*hits, *case.hits("size-mismatch")[:2]]
            if one:
                yield Candidate("app.collective-mismatch", 0.93, title, evidence, *who, final=True)
                return
            yield Candidate("app.collective-mismatch", 0.45, f"{title}, if all are of one communicator", evidence, *who)
            break


@diagnosis
def used_too_early(case: Case) -> Iterable[Candidate]:
    """A communicator is used although its previous operation is not over: a non-blocking one whose state nobody asked for.

    Where NCCL complained before, the operation had failed: then this is the effect, and says nothing more.
    """
    hits = case.hits("communicator-not-ready")
    if hits and not any(later(hits[0], hit) for hit in case.hits("nccl-warn", "nccl-trail")):
        title = "a communicator is used before its previous operation has ended"
        yield Candidate("app.pg-misuse", 0.72, title, hits, *speakers(hits))


@diagnosis
def send_and_receive_differ(case: Case) -> Iterable[Candidate]:
    """Two ranks of a group wait at the same number, one in a SEND, the other in a RECV of another size: the pair does not fit."""
    for items in _groups(case).values():
        ends = {item.operation: item for item in items if item.operation in ("SEND", "RECV")}
        send, receive = ends.get("SEND"), ends.get("RECV")
        if len(items) == 2 and send and receive and send.sequence == receive.sequence:
            sizes = [item.elements.partition(",")[0] for item in (send, receive)]
            if sizes[0] != sizes[1]:
                title = f"rank {send.rank} sends {sizes[0]}, rank {receive.rank} expects {sizes[1]}"
                proof = [item.hit for item in (receive, send) if item.hit]
                yield Candidate("app.collective-mismatch", 0.66, title, proof, {send.rank, receive.rank})
                return


@diagnosis
def completed_what_another_waits_in(case: Case) -> Iterable[Candidate]:
    """One rank waits in a work that another rank of the group has completed: their numbers do not mean the same call.

    No rank can complete a collective of all before every rank has entered it. So the calls were issued in another order,
    or some were left out, before that. Where no status line says what was completed, two that give up at the same time in
    different calls under different numbers say it. Point-to-point and rooted operations can complete on one side alone.
    """
    for group, items in _groups(case).items():
        if "(" not in group and group != "0":  # older torch numbers groups per rank: the same number, other members
            continue
        waiting = [item for item in items if item.operation not in _ONE_SIDED and item.sequence >= 0]
        waiting.sort(key=lambda one: one.sequence)
        for item in waiting[:1]:  # whoever completed the work of another has completed this one
            ahead = [other for other in items if other.completed >= item.sequence]
            told = bool(ahead)
            ahead = ahead or [other for other in items if _in_a_later_call(other, item)]
            if not ahead:
                continue
            lines = [hit for one in [item, *ahead] for hit in one.hits]
            call = f" ({item.operation})" if item.operation else ""  # only a status line: it may be a rooted one
            yield Candidate(
                "app.collective-mismatch",
                0.56 if not item.operation else 0.78 if told else 0.66,
                f"rank {item.rank} waits in work {item.sequence}{call}, which rank {ahead[0].rank} has completed",
                [*lines, *_telling(last_words(case, {item.rank, ahead[0].rank}))],
                {item.rank},
                final=True,
            )
            return


def _in_a_later_call(other: Work, item: Work) -> bool:
    """Whether a rank waits in a later and another call, and since the same time: of works that are late the watchdog tells
    the first, so it has completed those before."""
    here, there = (one.hit.seconds if one.hit else None for one in (item, other))
    return (
        here is not None
        and there is not None
        and abs(there - here) < _TOGETHER
        and other.sequence > item.sequence
        and (other.operation, _comparable(other)) != (item.operation, _comparable(item))
    )


_EPOCH_DONE = re.compile(
    rf"epoch.{{0,40}}(?:done|end|finish|complete)|(?:done|end|finish|complete)\w* epoch|{NO_DATA.pattern}",
    re.IGNORECASE,
)
# Why work may take one rank longer than the others.
_ODD = re.compile(
    r"\bmiss(?:es|ed)?\b|not (?:mounted|found|available|cached)|\bcold\b|fall(?:ing|s)? back|\bslow|degraded", re.I
)


def _telling(words: list[Hit]) -> list[Hit]:
    """Of what ranks said: that they ran out of data or were done, then the last lines."""
    return [*(hit for hit in words if _EPOCH_DONE.search(hit.text)), *words[-4:]]


_ONE_SIDED = ASYMMETRIC | {"BROADCAST", "REDUCE"}
_UNEQUAL_SIZES = frozenset(("ALLTOALL_BASE", "ALLTOALL"))


def _comparable(item: Work) -> str:
    return "" if item.operation in _UNEQUAL_SIZES else item.elements


@diagnosis
def behind_or_ahead(case: Case) -> Iterable[Candidate]:
    """A rank's last enqueued work is behind (it never joined) or its calls ran ahead of the others.

    A rank that is behind and alive is slow or went another way through the code; what its own last lines say (saving,
    loading, compiling, evaluating, out of data) decides between a straggler and a skipped collective. Who has completed more
    than another rank is not behind.
    """
    for items in _groups(case).values():
        known = [item for item in items if item.enqueued >= 0]
        if len(known) < 2:
            continue
        waited = Counter(item.sequence for item in known if item.hit and item.sequence >= 0)
        usual = waited.most_common(1)[0][0] if waited else max(item.enqueued for item in known)
        least = min(item.completed for item in known)
        low = [item for item in known if item.enqueued < usual and item.completed <= least]
        if not low or len(low) > len(known) / 2:
            continue
        ranks = {item.rank for item in low}
        ordered = [*low, *(item for item in known if item.rank not in ranks)]
        hits = [item.status_hit or item.hit for item in ordered[:4]]
        hits += [item.hit for item in ordered[:4]] + [item.status_hit or item.hit for item in ordered[4:]]
        yield from _why_behind(case, ranks, [hit for hit in hits if hit])
        return


@diagnosis
def extra_collective(case: Case) -> Iterable[Candidate]:
    """A few ranks wait in a work that the many never enqueued, and those have completed all of theirs: an extra collective.

    Where the many were in a work of their own, they would have had more enqueued than completed. Idle, they did not come
    to this call: it stands in a branch that only some ranks take. (Or all of them are slow at once, which is rarer.)
    """
    for items in _groups(case).values():
        known = [item for item in items if item.enqueued >= 0]
        idle = [item for item in known if item.hit is None and item.enqueued == item.completed]
        ahead = [item for item in known if item.hit and item.enqueued > item.completed]
        if not ahead or len(idle) <= len(ahead) or len(idle) + len(ahead) < len(known):
            continue
        if len({item.enqueued for item in idle}) > 1 or any(item.enqueued <= idle[0].enqueued for item in ahead):
            continue
        ranks = {item.rank for item in ahead}
        hits = [hit for item in [*ahead, *idle] for hit in item.hits]
        title = f"{listed_ranks(ranks)} issued a collective that the others, idle after work {idle[0].enqueued}, never joined"
        words = last_words(case, ranks)[-4:]
        yield Candidate("app.collective-mismatch", 0.66, title, [*hits[:4], *words, *hits[4:]], ranks)
        return


_DID_NOT_JOIN = re.compile(
    r"\[([\d, ]{1,400})\] (?:finished collective #\d+, but didn't join collective #\d+|are the lagging ranks that caused this timeout\. They never joined)"
)


@diagnosis
def desync_report(case: Case) -> Iterable[Candidate]:
    """torch's desync report (TORCH_NCCL_DESYNC_DEBUG) names the ranks that finished one collective and did not join the next.

    They are alive or dead elsewhere; their own last lines, where the logs have them, say which.
    """
    ranks: set[int] = set()
    hits = []
    for hit in case.hits("desync-lagging"):
        found = _DID_NOT_JOIN.search(hit.text)
        if found:
            ranks |= {int(number) for number in re.findall(r"\d+", found.group(1))}
            hits.append(hit)
    if ranks:
        yield from _why_behind(case, ranks, [*hits, *case.hits("desync-lagging")[:4]])


@diagnosis
def different_calls_in_snapshot(case: Case) -> Iterable[Candidate]:
    """The snapshot in torch's desync report has ranks in different operations under one number: they called different ones."""
    rows = case.hits("desync-started")
    beside = [(one, other) for one, other in itertools.pairwise(rows) if just_below(other, one, 1)]
    hits = in_order(itertools.chain(*beside))
    calls = dict.fromkeys(hit.groups["operation"].strip() for hit in hits)
    if len(calls) > 1:
        few = min(hits, key=lambda hit: hit.groups["ranks"].count(","))
        ranks = {int(number) for number in few.groups["ranks"].split(",")}
        title = f"the ranks stand in different operations ({', '.join(calls)}) under one sequence number"
        yield Candidate("app.collective-mismatch", 0.88, title, hits, ranks)


@diagnosis
def silent_rank(case: Case) -> Iterable[Candidate]:
    """Most ranks report a time-out, one or a few do not: those never joined the collective."""
    waited = {item.rank for item in case.waits}
    if not waited or not 0 < case.world - len(waited) <= max(1, case.world // 4):
        return
    absent = set(range(case.world)) - waited
    # A rank without any line may only be missing from the collection of logs, unless many others are there.
    if not absent <= case.summary.ranks and len(waited) < 3:
        return
    hits = [case.summary.last_of_rank[rank] for rank in sorted(absent) if rank in case.summary.last_of_rank]
    yield from _why_behind(case, absent, hits + case.hits("watchdog-timeout")[:4])


@diagnosis
def silent_member(case: Case) -> Iterable[Candidate]:
    """The members of a process group, a part of the job, wait in one work for one of theirs that waits for nobody: by their numbers
    in the group and in the job, that is the rank which never came."""
    waited = {item.rank for item in case.waits}
    silent: set[int] = set()
    waits: list[Work] = []
    for items in _groups(case).values():
        one = (
            len(items) < case.world - 1 and len({(item.sequence, item.operation in ASYMMETRIC) for item in items}) == 1
        )
        late = absent(items) - waited if one and items[0].operation not in ASYMMETRIC else set()
        if late:
            silent |= late
            waits += items
    if silent and (len(silent) == 1 or silent <= case.summary.ranks):
        hits = [case.summary.last_of_rank[rank] for rank in sorted(silent) if rank in case.summary.last_of_rank]
        yield from _why_behind(case, silent, [*hits, *(hit for item in waits[:4] for hit in item.hits)])


_GAVE_UP_WAITING = ("watchdog-timeout", "socket-timeout", "monitored-barrier", "heartbeat", "hccl-notify-timeout")


def _why_behind(case: Case, ranks: set[int], hits: list[Hit]) -> Iterable[Candidate]:
    who = listed_ranks(ranks)
    own = last_words(case, ranks)
    failed = case.first(*_GAVE_UP_WAITING)
    after = still_at_work(case, ranks, failed)[-2:] if failed is not None else []
    gone = gave_up(case, ranks)
    if gone:
        title = f"{who} gave up: {ending(gone[-1].text, 110)}"
        yield Candidate("app.rank-exception", 0.78, title, [*gone, *hits], ranks)
        return
    done = [hit for hit in own[-4:] if _EPOCH_DONE.search(hit.text)]
    said = [hit for hit in case.hits("straggler-words") if hit.rank in ranks or names_rank(hit.text, ranks)]
    busy = still_busy([*own, *said])
    if done and (not busy or later(done[-1], busy[-1])):
        yield Candidate(
            "app.uneven-inputs",
            0.72,
            f"{who} ran out of data while the others still had batches: {ending(done[-1].text, 110)}",
            [*reversed(done), *own[-4:], *hits],
            ranks,
        )
    elif slow := slower(case, ranks):
        title = f"{who} slower than the others: {ending(slow[0].text, 110)}"
        yield Candidate("app.straggler-timeout", 0.8, title, [*slow, *hits], ranks)
        return
    elif busy:
        last = busy[-1]
        yield Candidate(
            "app.straggler-timeout",
            0.8,
            f"{who} still busy while the others waited: {ending(last.text, 110)}",
            [*after, *reversed(busy[-6:]), *[hit for hit in own if _ODD.search(hit.text)][:2], *own[-4:], *hits],
            ranks,
        )
        title = f"{who} fell behind the others in the sequence of collectives"
        yield Candidate("app.collective-mismatch", 0.45, title, hits, ranks)
        return
    title = f"{who} did not join the collective the others wait in"
    yield Candidate("app.collective-mismatch", 0.6, title, [*own, *hits], ranks)
    yield Candidate("app.straggler-timeout", 0.56, f"{who} did not come in time", [*own, *hits], ranks)


_MISSING = re.compile(r"Ranks? (\d[\d, ]*) (?:failed to pass|timed out in) monitoredBarrier")


@diagnosis
def missing_at_barrier(case: Case) -> Iterable[Candidate]:
    """monitored_barrier names the ranks that did not come. Whether they were late, went another way or had died, it
    does not know: their own lines, where the logs have them, say so."""
    hits = case.hits("monitored-barrier")
    ranks = {int(n) for hit in hits for found in _MISSING.findall(hit.text) for n in re.findall(r"\d+", found)}
    if not ranks:
        title = "these ranks came to the barrier, and rank 0 did not answer there: its log names who was missing, or why it ended itself"
        yield from (
            Candidate("app.rank-exception", 0.3, title, [hit], {0}) for hit in case.hits("barrier-innocent")[:1]
        )
        return
    own = last_words(case, ranks)
    title = f"{listed_ranks(ranks)} did not reach the barrier in time"
    hits = [*hits, *case.hits("barrier-wrapper")[:2]]
    if done := [hit for hit in own if _EPOCH_DONE.search(hit.text)]:
        told = f"{listed_ranks(ranks)} had no (more) data and did not come to the barrier: {ending(done[-1].text, 90)}"
        yield Candidate("app.uneven-inputs", 0.72, told, [*done[-3:], *hits, *own], ranks)
    later_words = still_at_work(case, ranks, hits[0])
    strength = 0.66 if later_words else 0.48
    yield Candidate("app.straggler-timeout", strength, title, [*later_words, *hits, *own], ranks)
    yield Candidate("app.rank-exception", 0.2, title, hits, ranks)


@diagnosis
def missing_says_the_analyzer(case: Case) -> Iterable[Candidate]:
    """torch's flight-recorder analyzer names the ranks that did not join a collective; their own lines say what they did."""
    hits = case.hits("flight-recorder-missing")
    ranks = {int(number) for hit in hits for number in re.findall(r"\d+", hit.groups["ranks"])}
    if ranks and last_words(case, ranks):
        yield from _why_behind(case, ranks, [*case.hits("flight-recorder-verdict")[:2], *hits[:2]])


_SHORTEST_DEFAULT = 120  # s, torch 2.2; 600 in 2.3 and 2.4, 480 since 2.5


@diagnosis
def impatient_monitor(case: Case) -> Iterable[Candidate]:
    """The heartbeat monitor killed a rank after less time than any release's default: the time-out was set too short.

    A watchdog stands still for that long while memory is pinned, modules load or a checkpoint is staged.
    """
    hits = [hit for hit in case.hits("heartbeat") if 0 < int(hit.groups.get("seconds") or 0) < _SHORTEST_DEFAULT]
    if hits:
        name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
        title = f"{name} is only {hits[0].groups['seconds']} s: the monitor kills ranks that are merely busy"
        yield Candidate("env.bad-nccl-var", 0.74, title, [*case.env.get(name, [])[:2], *hits[:4]], ranks_of(hits))


_BAR = re.compile(r"\d%\|")  # a progress bar that was not at its end
_TOGETHER = 60.0  # seconds: ranks that give up so soon after each other came to the work at the same time


def _waited_from_the_start(case: Case) -> set[int]:
    """Ranks that gave up together with the first one, in the same work: they were there, whatever they had done before. In Gloo's
    words, whoever ran into a time-out of its own: who comes late finds closed connections."""
    ends = [(item.hit.seconds or 0.0, item) for item in case.work if item.hit]  # zero: its line has no time
    began, first = min(ends, key=lambda end: end[0], default=(0.0, None))
    together = {
        item.rank
        for end, item in ends
        if first and (item.group, item.sequence) == (first.group, first.sequence) and end - began < _TOGETHER
    }
    return together | ranks_of(item.hit for item in case.exceptions.waited_with_gloo)


_DONE = re.compile(r"\b(?:saved|done|finished|completed?|took)\b|\bin \d+(?:\.\d+)? ?(?:m?s|sec)", re.IGNORECASE)


def _of_later_ranks(case: Case, hit: Hit) -> bool:
    """Whether a line comes from a host of ranks that waited, and the first of them is on another: so is rank 0."""
    ended = {item.rank: item.hit.host for item in case.work if item.hit and item.hit.host}
    return hit.host in ended.values() and ended[min(ended)] != hit.host


@diagnosis
def busy_before_timeout(case: Case) -> Iterable[Candidate]:
    """A time-out, and just before it one rank (usually 0) says that it is busy with something long.

    Checkpoints, evaluation, downloads, tokenising, compilation or cache building on one rank while the others wait in a
    barrier: the classic straggler. Weaker than a comparison of the ranks' work.
    """
    of_engine = () if case.course.overcome("serving-watchdog") else ("serving-watchdog",)
    first = case.first(*_GAVE_UP_WAITING, *of_engine)
    if first is None:
        return
    before = case.summary.before.get(first.file, [])
    busy = still_busy(hit for hit in before if later(first, hit))
    if not busy:  # a bar without line feed, on whose line the traceback begins, is not among the lines before it
        busy = still_busy(hit for hit in case.hits("straggler-words") if just_below(first, hit, NEAR))
    if not busy:
        return
    last = busy[-1]
    ranks = {last.rank} if last.rank is not None else set(ranks_named(last.text)[:1])
    if ranks and ranks <= _waited_from_the_start(case):
        return
    if last.rank is not None:  # others may have begun the same; who waited had done it
        waiting = ranks_of(case.hits(*_GAVE_UP_WAITING, *of_engine))
        ranks |= ranks_of(hit for hit in busy if shape(hit.text) == shape(last.text)) - waiting
    waited = {item.rank for item in case.work}
    # Who speaks without a number is rank 0 most often; here all others wait, and these are its last words.
    sure = not ranks and last is before[-1] and len(waited) > 1 and set(range(case.world)) - waited == {0}
    sure = sure and not _of_later_ranks(case, last) and not _DONE.search(last.text)
    if any(last.line < end.line < first.line for end in case.hits("run-ended") if end.file == first.file):
        return  # that was done
    alike = [hit for hit in busy if _repeats(hit, last)]
    said = in_order((*case.tail, *case.lasts("straggler-words")))
    on = [hit for hit in said if later(hit, first) and _repeats(hit, last)]
    after = [*on, *still_at_work(case, ranks, first)][-2:]
    yield Candidate(
        "app.straggler-timeout",
        0.76 if on else 0.72 if sure else 0.68 if _BAR.search(last.text) else 0.58,
        f"{'ranks were' if len(ranks) > 1 else 'a rank was'} busy beyond the time-out: {ending(last.text, 110)}",
        [*after, last, alike[0], *called_from(case), *reversed(busy[-8:]), *case.hits("watchdog-timeout")[:2]],
        {0} if sure else ranks,
        set() if ranks else hosts_of([last]),
    )


_CALLED = re.compile(r"#\d+ \w+ from (?!.*torch/distributed/)")


def called_from(case: Case) -> list[Hit]:
    """From where the program called the collective that timed out, as torch's watchdog tells: the first frame that is not torch's."""
    return [hit for hit in case.hits("collective-stack-rows") if _CALLED.search(hit.text)][:1]


@diagnosis
def failed_after_the_end(case: Case) -> Iterable[Candidate]:
    """The run had told its end, and then a process could not take itself down: it hung until the heartbeat monitor killed it, or it crashed."""
    ends = case.hits("run-ended")
    for names, phrase in ((("heartbeat",), "a watchdog hung"), (("segfault", "sigabrt-exit"), "a process crashed")):
        late = [hit for hit in case.hits(*names) if any(later(hit, end) for end in ends)]
        if late:
            title = f"the run had ended; {phrase} in its shutdown"
            strengths = {"app.pg-misuse": 0.46, "sw.nccl-bug": 0.42}
            yield from rivals(strengths, title, [*late[:3], ends[-1]], *speakers(late))


def _repeats(hit: Hit, last: Hit) -> bool:
    """Whether the same process says the same again, but for its numbers."""
    return (hit.rank, hit.pid, shape(hit.text)) == (last.rank, last.pid, shape(last.text))


@diagnosis
def ran_out_before_timeout(case: Case) -> Iterable[Candidate]:
    """A time-out, and just before it a rank says that it has no (more) data: it left, the others wait for it in vain."""
    first = case.first(*_GAVE_UP_WAITING)
    if first is None:
        return
    before = case.summary.before.get(first.file, [])
    hits = [hit for hit in before if later(first, hit) and NO_DATA.search(hit.text)]
    ranks = ranks_of(hits) or {number for hit in hits for number in ranks_named(hit.text)}
    if len(ranks) == 1 and (case.world != 1 or ranks != {0}):
        title = f"a rank had no (more) data while the others waited for it: {ending(hits[-1].text, 90)}"
        yield Candidate("app.uneven-inputs", 0.64, title, [*hits[-3:], first], ranks)


_RANK_NUMBER = re.compile(
    r"(?:(?:rank|Rank|RANK)[ =_:\]\[]*|(?:^|[\s\]])\[?r(?=\d{1,4}\]?[:\]] ))(\d+)"
)  # "rank 3", " r3: "
_NAMED = r"batches|steps|samples|len\(?\w*loader\)?|dataset size|num_batches|examples|shards?|iterations"
_COUNTED = r"rows|sequences|files|batches|steps|samples|examples|iterations|mini-?batches"
_MEASURE = r"(?:m?s|sec\w*|min\w*|[KMGT]i?B)"  # of time or bytes: no count
# "batches: 1250", or "32 files, 1250 batches per epoch": of one line each kind of thing is compared by itself.
_BATCHES = re.compile(
    rf"\b(?P<kind>{_NAMED})\b[^\d\n]{{0,12}}(?<![A-Za-z][-_])(?!0\d)(?P<of>\d[\d,]*)(?![\d,]*(?:\.\d|\s?{_MEASURE}\b))|\b(?P<many>\d[\d,]*)\s+(?P<what>{_COUNTED})\b"
)
_RAN_TO_ITS_END = re.compile(
    r"\bepoch \d+ (?:is )?(?:done|finished|ended|complete[d]?)\b\D{1,20}(\d[\d,]*) (?:batches|steps|iterations)\b"
)
_OF_A_RANK = re.compile(rf"\b(?P<kind>{_NAMED}) (?:on|of|for|at) rank (?P<rank>\d{{1,6}})\W{{1,3}}(?P<of>\d[\d,]*)\b")
_ITS_NUMBER = re.compile(r"remote rank:? ?\[\d")
_OF_AN_EPOCH = "batches of an epoch"  # the last one that a rank tells
_SHARE = 80  # letters behind the rank's number in which its share is told


def _shares(hit: Hit) -> Iterator[tuple[str, int, int]]:
    """What a line tells of a rank's share of the data: of what, whose, and how many."""
    text = hit.text
    if "ank" in text or "ANK" in text or "] r" in text or text.startswith("r"):
        rank = _RANK_NUMBER.search(text)
        told = _OF_A_RANK.search(text) if rank else None
        if told:
            yield "samples" if told["kind"] == "dataset size" else told["kind"], int(told["rank"]), _number(told["of"])
        elif rank:
            for found in _BATCHES.finditer(text, rank.end(), rank.end() + _SHARE):
                yield found["kind"] or found["what"], int(rank[1]), _number(found["of"] or found["many"])
    elif hit.rank is not None and "epoch" in text and (ended := _RAN_TO_ITS_END.search(text)):
        yield _OF_AN_EPOCH, hit.rank, _number(ended[1])


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@diagnosis
def uneven_batches(case: Case) -> Iterable[Candidate]:
    """The ranks print different numbers of batches (or samples), and a collective then times out or loses a peer."""
    waited = case.hits("hccl-notify-timeout")
    lost = case.has(*GAVE_UP, "horovod-stall", "gloo-closed", "peer-closed", "size-mismatch")
    if not lost and (
        not waited or any(_ITS_NUMBER.search(hit.text) for hit in waited)
    ):  # who is missing is told by its number
        return
    counts: dict[str, dict[int, tuple[int, Hit]]] = {}
    for hits in (*case.summary.before.values(), case.hits("batch-count")):
        for hit in hits:
            for kind, rank, count in _shares(hit):
                ranks = counts.setdefault(kind, {})
                if kind == _OF_AN_EPOCH or rank not in ranks:
                    ranks[rank] = count, hit
    for kind, told in counts.items():
        values = {count for count, _ in told.values()}
        if len(values) > 1 and max(values) - min(values) < max(values) * 0.5 + 2:
            yield Candidate(
                "app.uneven-inputs",
                0.86,
                f"the ranks have different numbers of {kind} ({min(values)} to {max(values)})",
                [hit for _, hit in sorted(told.values(), key=lambda pair: pair[0])],
                {rank for rank, (count, _) in told.items() if count == min(values)},
                final=True,  # that the ranks then meet in different calls is its effect
            )
            return


@diagnosis
def second_communicator(case: Case) -> Iterable[Candidate]:
    """Ranks of one communicator start with different commIds and none completes: they are not in the same communicator.

    NCCL's commId is a hash of the unique id, so ranks of one communicator always print the same one. Different ids at the
    same size mean that the id was created or passed twice: the process group was initialised twice, or by two libraries.
    """
    started = [hit for hit in case.hits("nccl-init-start") if hit.groups.get("comm")]
    completed = {hit.groups.get("comm") for hit in case.hits("nccl-init-complete")}
    by_process: dict[tuple[str, str], list[Hit]] = defaultdict(list)
    for hit in started:
        by_process[(hit.host, hit.pid)].append(hit)
    last = [hits[-1] for hits in by_process.values() if hits[-1].groups["comm"] not in completed or len(hits) > 1]
    ids = {hit.groups["comm"] for hit in last}
    everyone = (
        {hit.groups["nranks"] for hit in last} == {str(len(last))} == {str(len({hit.groups["rank"] for hit in last}))}
    )
    if everyone and len(ids) > 1 and not ids <= completed:
        members = Counter(hit.groups["comm"] for hit in started)
        stale = [hit for hit in last if members[hit.groups["comm"]] > 1 or hit.groups["comm"] in completed]
        title = "the ranks try to join different communicators (their commIds differ)"
        yield Candidate("app.pg-misuse", 0.8, title, [*stale, *last], {int(hit.groups["rank"]) for hit in stale})


@diagnosis
def gave_up_before_timeout(case: Case) -> Iterable[Candidate]:
    """A time-out, and just before it a line that says that a worker gave up: the others wait for it in vain."""
    first = case.first(*_GAVE_UP_WAITING)
    gone = gave_up(case, None, before=first) if first else []
    if first and gone:
        title = f"a worker gave up before the time-out: {ending(gone[-1].text, 110)}"
        yield Candidate("app.rank-exception", 0.64, title, [*reversed(gone), first], ranks_of(gone))


@diagnosis
def long_operation(case: Case) -> Iterable[Candidate]:
    """A time-out, and a rank reports that an operation of its own took minutes: longer than the others could wait."""
    if not case.has(*_GAVE_UP_WAITING):
        return
    hits = sorted(case.hits("long-duration"), key=lambda hit: -float(hit.groups["seconds"]))
    limit = min([item.timeout_ms / 1000 for item in case.work if item.timeout_ms] or [600.0])
    long = [hit for hit in hits if float(hit.groups["seconds"]) >= 0.8 * limit]
    if long:
        title = f"an operation took {float(long[0].groups['seconds']):.0f} s, the others wait at most {limit:.0f} s"
        proof = [*long[:6], *case.hits("watchdog-timeout")[:2]]
        yield Candidate("app.straggler-timeout", 0.74, title, proof, ranks_of(long))


@diagnosis
def garbage_from_a_peer(case: Case) -> Iterable[Candidate]:
    """A peer's address is garbage although all processes run the same NCCL: they are in different calls (two sends, say)."""
    hits = case.hits("garbage-address")
    versions = {hit.groups["version"].split("+")[0] for hit in case.hits("nccl-version")}
    nameless = case.env.get("NCCL_SOCKET_IFNAME") and not case.has("bootstrap-using")  # no interface: no address
    if hits and len(versions) == 1 and not nameless:
        words = [hit for hits_before in case.summary.before.values() for hit in hits_before][-8:]
        title = "a rank read garbage where a peer's address should be: the ranks are in different calls"
        yield Candidate("app.collective-mismatch", 0.62, title, [*hits, *words], ranks_of(hits), final=True)
