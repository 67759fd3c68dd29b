"""From candidates to causes: causes explain effects, what the work got over counts less, what came first wins."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import trouble
from nccl_doctor.explain.candidates import PLAUSIBLE, collect
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.course import LINES_AFTER, MANY_LINES
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.hang import SIGINT
from nccl_doctor.explain.lines import SAME_TIME, came_after, later, place
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.slowdown import slowed

# What happens to a job whatever the cause was: peers vanish, waits time out, launchers clean up.
LATE = frozenset(
    [
        "net.peer-lost",
        "app.straggler-timeout",
        "launch.killed",
        "launch.rdzv",
        "sw.nccl-bug",
        "net.master-unreachable",
        "launch.world-size",
        "app.rank-exception",
        "ib.retry-exceeded",
        "net.firewall",
        "app.collective-mismatch",
        "unrelated",
        "app.pg-misuse",
        "app.uneven-inputs",
        "net.slow",
        "net.plugin",
        "net.wrong-interface",
    ]
)

# A cause (key) that explains these others even if they are printed earlier or look stronger.
EXPLAINS: dict[str, frozenset[str]] = {
    name: frozenset(others.split())
    for name, others in {
        "gpu.fell-off-bus": "gpu.illegal-access gpu.not-visible gpu.nvlink gpu.driver gpu.ecc gpu.oom ib.gdr "
        "app.dataloader-worker",
        "gpu.ecc": "gpu.illegal-access gpu.driver gpu.oom gpu.not-visible gpu.fell-off-bus",  # a reset follows, on AMD
        "gpu.nvlink": "gpu.illegal-access gpu.p2p gpu.driver gpu.fabric-manager",
        "gpu.fabric-manager": "gpu.not-visible gpu.driver gpu.nvlink gpu.p2p gpu.imex",
        "gpu.imex": "gpu.driver gpu.fabric-manager gpu.p2p sys.container",
        "gpu.mig": "gpu.duplicate gpu.not-visible gpu.p2p",
        "gpu.duplicate": "env.bad-nccl-var gpu.driver gpu.not-visible",
        "gpu.driver": "gpu.not-visible sw.library-conflict",
        "gpu.illegal-access": "gpu.driver app.dataloader-worker",
        "gpu.p2p": "gpu.driver gpu.illegal-access",
        "ib.port-down": "ib.qp-connect ib.device-not-found ib.gid-index gpu.driver",
        "ib.gid-index": "ib.qp-connect env.bad-nccl-var",
        "ib.memlock": "ib.qp-connect ib.gdr",
        "ib.gdr": "ib.qp-connect net.slow",
        "sys.shm": "sys.disk-full app.dataloader-worker sys.container gpu.p2p sys.host-oom gpu.driver",
        "sys.host-oom": "sys.threads",
        "sys.threads": "sys.host-oom",
        "sys.nofile": "app.dataloader-worker sys.shm gpu.p2p sys.container",
        "sys.node-failure": "sys.clock-or-dns-or-fs",
        "sys.clock-or-dns-or-fs": "sys.node-failure",
        "net.hostname-resolution": "net.wrong-interface env.bad-nccl-var",
        "net.port-in-use": "launch.rdzv",
        "launch.env-missing": "net.port-in-use",
        "sw.library-conflict": "sw.no-nccl-backend gpu.driver",
        "sw.nccl-version-mismatch": "gpu.driver",
        "gpu.oom": "gpu.driver",
    }.items()
}
_SEEN = 0.8  # a firewall that somebody saw dropping, not one that is only concluded


def rank(case: Case) -> list[Candidate]:
    """Candidates with their final strength, best first."""
    candidates = collect(case)
    before = {item.id: item.strength for item in candidates}
    outlived = {item.id for item in candidates if _gives_way(case, item, candidates)}
    for effect in candidates:
        for cause in candidates:
            if cause is not effect and cause.id not in outlived and _explains(case, cause, effect, before):
                effect.strength = min(effect.strength, before[effect.id] * 0.55)
                break
    for item in candidates:
        if item.cured or costs_speed(case, item) or case.has("nccl-corruption"):
            continue
        if case.course.recovered or _survived(case, item) or item.id in outlived:
            item.strength = min(item.strength, before[item.id] * 0.5)
    candidates.sort(key=lambda item: (-round(item.strength, 3), _place(item), item.id))
    return candidates


# Causes of a usually late kind that do explain what comes after them.
_FIRST_CAUSES = frozenset(("app.rank-exception", "launch.killed", "unrelated"))
# Troubles under which a job goes on, to its end even: moving on does not speak against them.
_SLOWNESS = frozenset(
    (
        "net.slow",
        "gpu.thermal-power",
        "ib.device-not-found",
        "ib.gdr",
        "app.nan-or-data",
        "gpu.nvlink",
    )
)
_MEASURED = frozenset(("busbw-row", "p2p-bandwidth-rows"))
_NO_ADAPTER = frozenset(("no-hca", "no-ib-device", "rdma-plugin"))


def costs_speed(case: Case, item: Candidate) -> bool:
    """Whether it may have cost the job speed or right numbers, though the job came to its end."""
    missed = case.nodes > 1 or any(hit.signature not in _NO_ADAPTER for hit in item.hits)  # one host alone needs none
    samples = all(hit.signature == "checkpoint-damaged" and "image" in hit.text for hit in item.hits)  # passed over
    slow = item.id in _SLOWNESS or any(hit.signature in _MEASURED for hit in item.hits)  # what it costs was measured
    return item.slows or (slow and not (item.vague or samples) and missed and not _finite_again(case, item))


def _survived(case: Case, item: Candidate) -> bool:
    """Whether the work went on to a good end after the candidate's last line, and nothing failed: it did no harm."""
    course = case.course
    if case.exceptions.ordinary or any(not course.overcome(symptom.name) for symptom in case.seen(Role.SYMPTOM)):
        return False
    if item.id.startswith(("ib.", "net.", "gpu.")) and item.id != "gpu.oom" and slowed(case):
        return False
    return all(_went_on(case, item, last) for last in _latest(case, item))


def _latest(case: Case, item: Candidate) -> list[Hit]:
    """The candidate's last line in each file: of lines alike one is kept, and the last. What only agrees with the others, and
    proves nothing alone, may be said of something else later on."""
    hits = _firm(case, item)
    files = {hit.file for hit in hits}
    lasts = [
        last
        for name in {hit.signature for hit in hits}
        for last in case.lasts(name)
        # In a file that says nothing of this one, it may be a word of trouble only.
        if last.file in files or name != "error-line" or trouble.sounds_bad(last.text)
    ]
    return list({hit.file: hit for hit in sorted((*hits, *lasts), key=place)}.values())


def _firm(case: Case, item: Candidate) -> list[Hit]:
    """The candidate's lines without those that prove nothing alone, or are no sign of trouble."""
    firm = [hit for hit in item.hits if not 0 < _alone(case, hit) < PLAUSIBLE]
    signs = [hit for hit in firm if hit.signature not in ("before", "error-line", "last", "progress")]
    return signs or firm or item.hits


def _alone(case: Case, hit: Hit) -> float:
    """What a line proves by its signature; 0 for lines that diagnoses weigh."""
    return case.signatures[hit.signature].strength if hit.signature in case.signatures else 0.0


_LONG = 1800.0  # seconds: no usual time-out of a collective is longer


def _long_before(one: Hit, other: Hit) -> bool:
    """Whether what stands still after ``one`` would have ended, or printed all it can, before ``other`` came."""
    if one.seconds is not None and other.seconds is not None and other.seconds - one.seconds > _LONG:
        return True
    return one.file == other.file and other.line > one.line + MANY_LINES


# What the loss of a process, or of a host, does to the attempts after it
_LEFT_BEHIND = frozenset(
    (
        "app.straggler-timeout",
        "launch.rdzv",
        "launch.world-size",
        "net.master-unreachable",
        "net.peer-lost",
        "net.port-in-use",
        "sw.nccl-bug",
    )
)


def ends_it(of_last: list[Candidate], of_all: list[Candidate]) -> bool:
    """Whether the best cause of a job's last attempt, and not the best one of all its log, says why the job ended, or is slow."""
    if not of_last or of_last[0].id == of_all[0].id:
        return False
    last, follows = of_last[0], _LEFT_BEHIND | EXPLAINS.get(of_all[0].id, frozenset())
    convinces = last.slows or last.id in _SLOWNESS or last.strength >= PLAUSIBLE
    return convinces and not last.vague and last.id not in follows


# What the scheduler ended a job for, whatever the job did
_FROM_OUTSIDE = re.compile(
    r"DUE TO (?:TIME ?(?:LIMIT|OUT)|PREEMPT)|time limit (?:was )?(?:reached|exceeded)", re.IGNORECASE
)
# Conditions and slow losses: that work goes on for a while does not speak against them. Everything else ends a process at once,
# or keeps it from its start: whoever takes two more steps was not harmed.
_LASTING = _SLOWNESS | frozenset(
    (
        "app.straggler-timeout",
        "app.uneven-inputs",
        "env.bad-nccl-var",
        "gpu.ecc",
        "ib.port-down",
        "ib.retry-exceeded",
        "net.mtu",
        "net.peer-lost",
        "net.plugin",
        "sys.clock-or-dns-or-fs",
        "sys.disk-full",
        "sys.node-failure",
        "unrelated",
    )
)


def _gives_way(case: Case, item: Candidate, candidates: list[Candidate]) -> bool:
    """Whether the work went on after it, until something else came that convinces by itself."""
    others = [one for one in candidates if one is not item and one.strength >= PLAUSIBLE and not one.vague]
    latest = _latest(case, item) if others else []
    stepped = item.id not in _LASTING and all(map(case.course.stepped_after, latest))
    if not stepped:
        others = [one for one in others if one.strength >= _SEEN]
        others = [
            one for one in others if one.id not in LATE or any(_FROM_OUTSIDE.search(hit.text) for hit in one.hits)
        ]
    between = any(
        all(_worked_between(case, last, hit) for last in latest for hit in _firm(case, one)) for one in others
    )
    return between and (stepped or all(map(case.course.outlived, latest)))


def _worked_between(case: Case, last: Hit, hit: Hit) -> bool:
    """Whether the last step stands between the two lines, or steps went on for long after the first, and the second came later."""
    step = case.last("progress", last.file)
    if step is None:
        return False
    between = hit.file == step.file and hit.line > step.line > last.line
    return between or (_long_before(last, step) and _long_before(last, hit))


def _went_on(case: Case, item: Candidate, last: Hit) -> bool:
    """Whether the work went on, or came to a good end, after the candidate's last line in its file."""
    if last.file in case.course.failed_files or last.host in case.course.left_out:
        return False
    if case.has("progress") and case.course.began_after(last.seconds):
        return True
    ends = (case.last(name, last.file) for name in ("ended-well", "nccl-tests-ok"))
    if any(end is not None and end.line > last.line for end in ends):
        return True
    if item.id not in _LASTING and case.course.stepped_after(last):
        return True
    soon = _at_start(item) or _told(case, item) or _retried(item)
    step = case.last("progress", last.file)
    lines = LINES_AFTER if soon else MANY_LINES
    return step is not None and step.line >= last.line + lines


def _at_start(item: Candidate) -> bool:
    """Whether all of it says that the program could not start: then any step of the program speaks against it."""
    return item.id in ("gpu.fabric-manager", "sw.no-nccl-backend") or all(
        hit.signature in ("shell-missing", "argparse", "config-refused") for hit in item.hits
    )


_RETRY = re.compile(
    r"\b(?:attempt|retry|try) ?#?\(?\d+|\bretry(?:ing)?\b|trying again|sleeping \d|\bskipp(?:ed|ing)\b|\bignor(?:ed|ing)\b|"
    r"\bcontinuing\b|\bfalling back\b|\brestarting\b|\bfail(?:ing|ed) ?over\b|Initiating recovery\? Yes|"
    r"GID table changed?|\bunknown event type \(|"
    r"\bnon-fatal async event: (?!port error|device)",
    re.IGNORECASE,
)


def _retried(item: Candidate) -> bool:
    """Whether every line of it says that the program tries again, or goes on without."""
    return all(_RETRY.search(hit.text) for hit in item.hits)


_FINITE = re.compile(r"loss\W{0,4}\d", re.IGNORECASE)


def _finite_again(case: Case, item: Candidate) -> bool:
    """Whether the numbers that went wrong are finite in the last step that the log tells."""
    last = max(item.hits, key=place)
    on = case.last("progress", last.file)
    return bool(item.id == "app.nan-or-data" and on and on.line > last.line and _FINITE.search(on.text))


# What Python reports by an exception: nobody else prints these words.
_RAISED = frozenset(("gpu.oom", "sys.disk-full", "sys.nofile", "app.bad-tensor", "app.pg-misuse"))


def _told(case: Case, item: Candidate) -> bool:
    """Whether the program caught its exception: two more steps needed its rank; or it told of it in words of its own, and its rank
    spoke on."""
    if item.id not in _RAISED:
        return False
    latest = max(item.hits, key=place)
    if case.course.stepped_after(latest):
        return True
    raised = {place(one.hit) for one in case.summary.tracebacks}
    spoke = [case.summary.last_of_rank.get(hit.rank, hit) for hit in item.hits if hit.rank is not None]
    return not any(place(hit) in raised for hit in item.hits) and all(last.line > latest.line for last in spoke)


def _place(item: Candidate) -> tuple[str, int]:
    first = min(item.hits, key=place)
    return first.file, first.line


def _explains(case: Case, cause: Candidate, effect: Candidate, before: dict[str, float]) -> bool:
    if before[cause.id] < PLAUSIBLE or effect.final:
        return False
    if (
        effect.id == "launch.killed"
        and _by_hand(effect)
        and (cause.id in _WATCHED or _why_interrupted(case, cause, effect))
    ):
        return True
    waited = (cause.id, effect.id) == ("launch.world-size", "launch.killed") and not case.has("progress")
    if waited and before[cause.id] >= _SEEN:  # for what it never got, until somebody, or a limit, ended it
        return True
    if {cause.id, effect.id} == {"launch.killed", "sys.node-failure"}:
        killed = cause if cause.id == "launch.killed" else effect
        if any(_TAKEN_AWAY.search(hit.text) for hit in killed.hits):  # a host that was taken away is lost, too
            return cause is killed
    if cause.id == "unrelated" and effect.id == "net.hostname-resolution":
        return any(hit.signature.startswith("image-not-") for hit in cause.hits)  # a pod that never starts has no name
    if cause.id == "net.firewall" and effect.id == "net.master-unreachable":
        return before[cause.id] >= _SEEN
    if effect.id == "gpu.illegal-access" and cause.id in _BY_THE_ADAPTER:
        return _same_process_before(cause, effect)
    if effect.id in EXPLAINS.get(cause.id, frozenset()):
        # Where each could explain the other, the stronger one does; of equals neither.
        return cause.id not in EXPLAINS.get(effect.id, frozenset()) or before[cause.id] > before[effect.id]
    if effect.id not in LATE:
        return False
    if cause.id in LATE and cause.id not in _FIRST_CAUSES and not cause.final:
        return False
    if before[effect.id] < PLAUSIBLE:
        return True
    if cause.final:
        return True
    if cause.id == "unrelated":
        return came_after(_first(effect), _first(cause)) is True
    # Two plausible ones, the effect of a kind that usually comes late: it keeps its place only if it came first.
    return came_after(_first(cause), _first(effect)) is not True or _side_by_side(cause, effect)


_MERGED = 60  # lines: a launcher passes on what ranks say in the same second in any order


def _side_by_side(cause: Candidate, effect: Candidate) -> bool:
    """Whether the error of a process's own native code and the adapters' complaints, which no longer reach it, stand close together,
    and no times tell them apart: the one brings the other about, and never the other way round. (A program's Python may well fail
    once more while it takes down what the adapters had broken.)"""
    one, other = _first(cause), _first(effect)
    native = any(hit.signature == "native-exception" for hit in cause.hits)
    if (cause.id, effect.id) != ("app.rank-exception", "ib.retry-exceeded") or not native:
        return False
    apart = one.seconds is not None and other.seconds is not None and abs(one.seconds - other.seconds) > SAME_TIME
    return not apart and one.file == other.file and abs(one.line - other.line) <= _MERGED


_BY_THE_ADAPTER = frozenset(("ib.retry-exceeded", "ib.gdr"))


def _same_process_before(cause: Candidate, effect: Candidate) -> bool:
    """Whether each process of the effect told of the cause first: its adapter had failed before its GPU did."""
    told = [hit for hit in effect.hits if hit.pid]
    return bool(told) and all(
        any(one.pid == hit.pid and one.host == hit.host and later(hit, one) for one in cause.hits) for hit in told
    )


# What makes a job slow or hang: somebody who watches it stops it, and looks for the reason afterwards.
_WATCHED = frozenset(("gpu.thermal-power", "gpu.ecc", "gpu.nvlink", "gpu.p2p", "ib.port-down", "net.slow"))
_HAND = re.compile(rf"Force Terminated|CANCELLED AT|scancel|{SIGINT.pattern}")
# What an interrupt itself does to a job.
_OF_INTERRUPT = frozenset(
    (
        "app.rank-exception",
        "app.dataloader-worker",
        "unrelated",
        "net.peer-lost",
        "net.master-unreachable",
        "launch.rdzv",
        "sys.host-oom",
        "sw.nccl-bug",
    )
)
_TAKEN_AWAY = re.compile(r"preempt|\bspot\b|maintenance|scale.?down", re.IGNORECASE)


def _by_hand(item: Candidate) -> bool:
    """Whether somebody stopped the job by hand: no limit and no preemption is named."""
    told = [
        hit for hit in item.hits if hit.signature != "exception"
    ]  # the lines of an exception's traceback say no more
    return bool(told) and all(_HAND.search(hit.text) and "DUE TO" not in hit.text for hit in told)


def _why_interrupted(case: Case, cause: Candidate, effect: Candidate) -> bool:
    """Whether Ctrl-C ended the job because of this cause: it does not come of an interrupt, and the work did not outlive it."""
    if not all(SIGINT.search(hit.text) for hit in effect.hits if hit.signature != "exception"):
        return False
    if cause.cured or cause.slows:
        return True  # it was too slow to wait for
    afterwards = cause.id in LATE and came_after(_first(cause), _first(effect)) is True
    return cause.id not in _OF_INTERRUPT and not afterwards and not _survived(case, cause)


def _first(item: Candidate) -> Hit:
    """The earliest hit; by time where hits have one."""
    timed = [hit for hit in item.hits if hit.seconds is not None]
    if len(timed) == len(item.hits):
        return min(timed, key=lambda hit: (hit.seconds or 0.0, hit.file, hit.line))
    return min(item.hits, key=place)
