"""From candidates to causes: join by id, let causes explain effects, order by what came first."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Candidate, Case, all_diagnoses, ranks_of, speakers
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.findings import playbooks

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
        "gpu.ecc": "gpu.illegal-access gpu.driver gpu.oom gpu.not-visible",
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
        "ib.gdr": "ib.qp-connect",
        "sys.shm": "sys.disk-full app.dataloader-worker sys.container gpu.p2p sys.host-oom gpu.driver",
        "sys.host-oom": "sys.threads",
        "sys.threads": "sys.host-oom",
        "sys.nofile": "app.dataloader-worker sys.shm gpu.p2p sys.container",
        "sys.node-failure": "sys.clock-or-dns-or-fs",
        "net.hostname-resolution": "net.wrong-interface env.bad-nccl-var",
        "net.port-in-use": "launch.rdzv",
        "sw.library-conflict": "sw.no-nccl-backend gpu.driver",
        "sw.nccl-version-mismatch": "gpu.driver",
        "env.bad-nccl-var": "",
        "gpu.oom": "gpu.driver",
        "app.dataloader-worker": "",
    }.items()
}
_PLAUSIBLE = 0.6
_BESIDE = 0.58  # what the job does not use, as far as its lines say
_SEEN = 0.8  # a firewall that somebody saw dropping, not one that is only concluded
_TOPIC = {cause: place for place, cause in enumerate(topics.TOPICS)}  # of equals the one that is named first
_EXTRA = 0.012  # each further signature that agrees


def collect(case: Case) -> list[Candidate]:
    """All candidates: one per cause id, from signatures and diagnoses."""
    found: list[Candidate] = []
    for name in case.summary.groups:
        signature = case.signatures.get(name)
        if signature is None or not signature.cause or signature.role not in (Role.CAUSE, Role.SYMPTOM):
            continue
        if case.overcome(name):
            continue
        hits = [
            hit
            for hit in case.hits(name)
            if not case.follows_failed_task(hit) and (hit.file, hit.line) not in case.caught
        ]
        if not hits:
            continue
        found.append(
            Candidate(
                signature.cause,
                min(signature.strength, _BESIDE) if all(map(case.beside_the_job, hits)) else signature.strength,
                _title(signature.title, hits),
                [*hits, *(line for hit in hits for line in case.more.get((hit.file, hit.line), ()))],
                *speakers(hits),
                signature.why,
            )
        )
    for rule in all_diagnoses():
        found.extend(rule(case))
    if max((item.strength for item in found), default=0.0) < _PLAUSIBLE:
        found.extend(_last_resort(case))
    elif len(known := {item.id for item in found}) < len(_FURTHER):  # words still tell what else it may be
        found.extend(item for item in _by_words(case, _FURTHER) if item.id not in known)
    return _join(found)


_LIKELIEST = (0.36, 0.32, 0.29, 0.26)
_FURTHER = (0.24, 0.22, 0.2)


def _by_words(case: Case, strengths: tuple[float, ...]) -> list[Candidate]:
    """What the words of the lines that sound like trouble are about, the subject of most lines first."""
    votes = sorted(topics.vote(case).items(), key=lambda pair: (-len(pair[1]), _TOPIC[pair[0]]))
    return [
        Candidate(
            cause,
            strength,
            f"perhaps this, by the words of some lines: {playbooks.load(cause).title}",
            hits,
            ranks_of(hits),
            vague=True,
        )
        for strength, (cause, hits) in zip(strengths, votes, strict=False)
    ]


def _last_resort(case: Case) -> list[Candidate]:
    """What is left when no signature is convincing: words, else the log's last lines."""
    found = _by_words(case, _LIKELIEST)
    last = [hit for hits in case.summary.tails.values() for hit in hits[-3:] if topics.says_failure(hit.text)]
    if last and not found:
        title = f"the log ends with {last[-1].text.strip()[-110:]!r}; why, it does not say"
        found.append(Candidate("app.rank-exception", 0.25, title, last, ranks_of(last), vague=True))
    return found


_HOLE = re.compile(r"\{(\w+)\}")


def _title(template: str, hits: list[Hit]) -> str:
    """The title with the words of the first hit that has them all; not every wording of a message says everything."""
    names = set(_HOLE.findall(template))
    groups = next((hit.groups for hit in hits if names <= hit.groups.keys()), hits[0].groups)
    return _HOLE.sub(lambda hole: groups.get(hole.group(1), "?")[:80], template)


def _join(found: Iterable[Candidate]) -> list[Candidate]:
    by_id: dict[str, Candidate] = {}
    for item in sorted(found, key=lambda candidate: -candidate.strength):
        best = by_id.get(item.id)
        if best is None:
            by_id[item.id] = item
            continue
        if item.strength >= 0.3:
            best.strength = min(0.99, best.strength + _EXTRA)
        best.hits = best.hits + item.hits
        best.final = best.final or item.final
        best.cured = best.cured or item.cured
        if not best.ranks:
            best.ranks = item.ranks
        best.hosts = best.hosts or item.hosts
    return list(by_id.values())


def rank(case: Case) -> list[Candidate]:
    """Candidates with their final strength, best first."""
    candidates = collect(case)
    before = {item.id: item.strength for item in candidates}
    for effect in candidates:
        for cause in candidates:
            if cause is not effect and _explains(case, cause, effect, before):
                effect.strength = min(effect.strength, before[effect.id] * 0.55)
                break
    for item in candidates:
        if item.cured or _slows(case, item) or case.has("nccl-corruption"):
            continue
        if case.recovered or _survived(case, item):
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
        "gpu.ecc",
    )
)
_NO_ADAPTER = frozenset(("no-hca", "no-ib-device", "rdma-plugin"))


def _slows(case: Case, item: Candidate) -> bool:
    """Whether it may have cost the job speed or right numbers, though the job came to its end."""
    missed = case.nodes > 1 or any(hit.signature not in _NO_ADAPTER for hit in item.hits)  # one host alone needs none
    samples = all(hit.signature == "checkpoint-damaged" and "image" in hit.text for hit in item.hits)  # passed over
    return item.id in _SLOWNESS and not (item.vague or samples) and missed and not _finite_again(case, item)


def _survived(case: Case, item: Candidate) -> bool:
    """Whether the work went on to a good end after the candidate's last line, and nothing failed: it did no harm."""
    if case.ordinary or any(
        signature.role is Role.SYMPTOM and case.count(name) and not case.overcome(name)
        for name, signature in case.signatures.items()
    ):
        return False
    if case.slowed and item.id.startswith(("ib.", "net.", "gpu.")):
        return False
    end = case.last("ended-well") or case.last("nccl-tests-ok")
    on = case.last("progress")
    lasts = (
        case.last(name) for name in {hit.signature for hit in item.hits}
    )  # of lines alike one is kept, and the last
    last = max((*item.hits, *(hit for hit in lasts if hit)), key=lambda hit: (hit.file, hit.line))
    if last.file in case.failed_files:
        return False
    return any(hit is not None and hit.file == last.file and hit.line > last.line for hit in (end,)) or (
        on is not None
        and on.file == last.file
        and (
            on.line >= last.line + (3 if _at_start(item) or _told(case, item) or _retried(item) else 21)
            or any(last.line < hit.line < on.line for hit in case.hits("resumed") if hit.file == last.file)
        )
    )


def _at_start(item: Candidate) -> bool:
    """Whether all of it says that the program could not start: then any step of the program speaks against it."""
    return item.id in ("gpu.fabric-manager", "sw.no-nccl-backend") or all(
        hit.signature in ("shell-missing", "argparse", "config-refused") for hit in item.hits
    )


_RETRY = re.compile(
    r"\b(?:attempt|retry|try) ?#?\(?\d+|\bretry(?:ing)?\b|trying again|sleeping \d|\bskipp(?:ed|ing)\b|\bignor(?:ed|ing)\b|"
    r"\bcontinuing\b|\bfalling back\b|\brestarting\b",
    re.IGNORECASE,
)


def _retried(item: Candidate) -> bool:
    """Whether every line of it says that the program tries again, or goes on without."""
    return all(_RETRY.search(hit.text) for hit in item.hits)


_FINITE = re.compile(r"loss\W{0,4}\d", re.IGNORECASE)


def _finite_again(case: Case, item: Candidate) -> bool:
    """Whether the numbers that went wrong are finite in the last step that the log tells."""
    on = case.last("progress")
    last = max(item.hits, key=lambda hit: (hit.file, hit.line))
    return bool(
        item.id == "app.nan-or-data" and on and on.file == last.file and on.line > last.line and _FINITE.search(on.text)
    )


# What Python reports by an exception: nobody else prints these words.
_RAISED = frozenset(("gpu.oom", "sys.disk-full", "sys.nofile", "app.bad-tensor", "app.pg-misuse"))


def _told(case: Case, item: Candidate) -> bool:
    """Whether the program itself told of its exception, in words of its own, and its rank spoke on: it was caught."""
    raised = {(one.hit.file, one.hit.line) for one in case.summary.tracebacks}
    spoke = [case.summary.last_of_rank.get(hit.rank, hit) for hit in item.hits if hit.rank is not None]
    return (
        item.id in _RAISED
        and not any((hit.file, hit.line) in raised for hit in item.hits)
        and all(last.line > max(hit.line for hit in item.hits) for last in spoke)
    )


def _place(item: Candidate) -> tuple[str, int]:
    first = min(item.hits, key=lambda hit: (hit.file, hit.line))
    return first.file, first.line


def _explains(case: Case, cause: Candidate, effect: Candidate, before: dict[str, float]) -> bool:
    if before[cause.id] < _PLAUSIBLE or effect.final:
        return False
    if effect.id == "launch.killed" and cause.id in _WATCHED and _by_hand(effect):
        return True
    if {cause.id, effect.id} == {"launch.killed", "sys.node-failure"}:
        killed = cause if cause.id == "launch.killed" else effect
        if any(_TAKEN_AWAY.search(hit.text) for hit in killed.hits):  # a host that was taken away is lost, too
            return cause is killed
    if cause.id == "net.firewall" and effect.id == "net.master-unreachable":
        return before[cause.id] >= _SEEN
    if effect.id in EXPLAINS.get(cause.id, frozenset()):
        # Where each could explain the other, the stronger one does; of equals neither.
        return cause.id not in EXPLAINS.get(effect.id, frozenset()) or before[cause.id] > before[effect.id]
    if effect.id not in LATE:
        return False
    if cause.id in LATE and cause.id not in _FIRST_CAUSES and not cause.final:
        return False
    if before[effect.id] < _PLAUSIBLE:
        return True
    if cause.final:
        return True
    if cause.id == "unrelated":
        return case.after(_first(effect), _first(cause)) is True
    # Two plausible ones, the effect of a kind that usually comes late: it keeps its place only if it came first.
    later = case.after(_first(cause), _first(effect))
    return later is not True


# What makes a job slow or hang: somebody who watches it stops it, and looks for the reason afterwards.
_WATCHED = frozenset(("gpu.thermal-power", "gpu.ecc", "gpu.nvlink", "gpu.p2p", "ib.port-down", "net.slow"))
_HAND = re.compile(r"Force Terminated|CANCELLED AT|scancel|KeyboardInterrupt")
_TAKEN_AWAY = re.compile(r"preempt|\bspot\b|maintenance|scale.?down", re.IGNORECASE)


def _by_hand(item: Candidate) -> bool:
    """Whether somebody stopped the job by hand: no limit and no preemption is named."""
    return all(_HAND.search(hit.text) and "DUE TO" not in hit.text for hit in item.hits)


def _first(item: Candidate) -> Hit:
    """The earliest hit; by time where hits have one."""
    timed = [hit for hit in item.hits if hit.seconds is not None]
    if len(timed) == len(item.hits):
        return min(timed, key=lambda hit: (hit.seconds or 0.0, hit.file, hit.line))
    return min(item.hits, key=lambda hit: (hit.file, hit.line))
