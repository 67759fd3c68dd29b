"""What a case may be, before it is ranked: the causes that signatures, diagnoses and plain words point to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, all_diagnoses
from nccl_doctor.explain.hang import GAVE_UP
from nccl_doctor.explain.lines import ending, hosts_of, later, place, ranks_of, shortened
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.explain.signatures.system import SHELL_KILLED
from nccl_doctor.findings import playbooks

PLAUSIBLE = 0.6  # from here on a candidate convinces
_BESIDE = 0.58  # what the job does not use, as far as its lines say
_SPARE = 0.18  # a second port that nobody uses, mostly
_BY_HAND = 0.3  # Ctrl-C in a job that hangs
_AFTERWARDS = 0.2  # how a program ends that had given up before
_EXTRA = 0.012  # each further signature that agrees
_LIKELIEST = (0.36, 0.32, 0.29, 0.26)
_FURTHER = (0.24, 0.22, 0.2)


def collect(case: Case) -> list[Candidate]:
    """All candidates: one per cause id, from signatures, diagnoses and, where these do not convince, from words."""
    found = list(_from_signatures(case))
    for rule in all_diagnoses():
        found.extend(rule(case))
    if max((item.strength for item in found), default=0.0) < PLAUSIBLE:
        found.extend(_last_resort(case))
    elif len(known := {item.id for item in found}) < len(_FURTHER):  # words still tell what else it may be
        found.extend(item for item in _by_words(case, _FURTHER) if item.id not in known)
    return _join(found)


def _from_signatures(case: Case) -> Iterator[Candidate]:
    """What each signature proves alone, by the lines that nothing else accounts for."""
    more = case.exceptions.more
    effects = case.exceptions.caught | {
        place(hit) for item in case.exceptions.of_pipes for hit in (item.hit, *item.more)
    }
    for name in case.summary.groups:
        signature = case.signatures.get(name)
        if signature is None or not signature.cause or signature.role not in (Role.CAUSE, Role.SYMPTOM):
            continue
        if case.course.overcome(name):
            continue
        if name == "nccl-frame" and _attached(case):
            continue
        hits = [
            hit
            for hit in case.hits(name)
            if not _follows_failed_task(case, hit) and place(hit) not in effects and not _passed_over(case, hit)
        ]
        if hits:
            strength = signature.strength
            if all(_beside_the_job(case, hit) for hit in hits):
                strength = min(strength, _BESIDE)
            if name == "port-state-down" and _switched_off(case, hits):
                strength = _SPARE
            if name == "kernel-link-down" and all(_up_at_the_start(case, hit) for hit in hits):
                strength = min(strength, _AFTERWARDS)
            if all(case.hang.ended_by(hit) for hit in hits):
                strength = min(strength, _BY_HAND)
            if all(_ended_by_others(case, hit) for hit in hits):
                strength = min(strength, _AFTERWARDS)
            yield Candidate(
                signature.cause,
                strength,
                told(signature.title, hits),
                [*hits, *(line for hit in hits for line in more.get(place(hit), ()))],
                ranks_of(hits),
                {hit.groups["node"].rstrip(",.:;") for hit in hits if "node" in hit.groups}
                or hosts_of(hits),  # of whom they speak
                signature.why,
                signature.page,
            )


_CANCELLED = re.compile(r"CANCELLED AT|Force Terminated")
_TASK_FAILED = re.compile(r"Terminating StepId=|tasks? [\d,-]+: (?:Exited with exit code|Killed|Seg|Abort|Bus|Out Of)")
_CRASHED = ("segfault", "sigabrt-exit", "bus-error", "crash-handler")


def _attached(case: Case) -> bool:
    """Whether the native stacks are those of processes that stand still, and not of a crash."""
    return any(hit.signature == "stack-debugger" for hit in case.hang.stacks) and not any(map(case.has, _CRASHED))


def _follows_failed_task(case: Case, hit: Hit) -> bool:
    """Whether Slurm cancelled the step after a task had failed, waited in vain or could not start: it is no cause then."""
    if not _CANCELLED.search(hit.text) or "DUE TO" in hit.text:
        return False
    failed = [item for item in case.hits("mpi-abort", "sigkill") if _TASK_FAILED.search(item.text)]
    failed += case.hits(
        "watchdog-timeout", "watchdog-down", "monitored-barrier", *(_CRASHED if "STEP" in hit.text else ())
    )
    failed += [item for item in case.hits("step-not-launched", "credential-refused") if "srun" in item.text]
    return any(item.file == hit.file and item.line < hit.line for item in failed)


_DEAD_WORKER = re.compile(r"Worker PID: (\d+)")


def _ended_by_others(case: Case, hit: Hit) -> bool:
    """Whether this is only how a program ends that had given up: a watchdog's SIGKILL, of which the shell tells, the trap
    of a kernel that has waited in vain for other ranks, a crash after XLA had aborted its communicators, a fabric manager
    that found no switch to manage, or a worker of Ray whose own watchdog ended it."""
    if hit.signature in ("sigkill", "shell-killed") and SHELL_KILLED.search(hit.text):
        before = case.hits(*GAVE_UP)
    elif "unspecified launch failure" in hit.text:
        before = case.hits("deepep-timeout", "symmetric-signal-timeout")
    elif hit.signature in _CRASHED:
        before = case.hits("xla-communicator")
    elif hit.signature == "fabric-manager":
        before = case.hits("no-switch-to-manage")
    elif hit.signature == "ray-vanished":
        before = case.hits("watchdog-timeout", "watchdog-down")
        dead = _DEAD_WORKER.search(hit.text)
        if dead and any(one.pid == dead[1] for one in before):
            return True  # Ray passes a worker's last words on when it may have told of its end already
    else:
        return False
    return any(_behind(case, hit, one) for one in before)


_PORT = re.compile(r"\b(?:link|device|CA|hca_id:?) '?([a-z]\w+)")  # rdma link, ibstatus and the like


_ONE_DEVICE = re.compile(r"Unable to open device \w|ibv_open_device failed")


def _passed_over(case: Case, hit: Hit) -> bool:
    """Whether NCCL could not open an adapter and goes on without: a container is given some of its host's.

    Only where all of the job's processes then use the same: those that use more would wait for a peer on the others.
    """
    if hit.signature != "no-hca" or not _ONE_DEVICE.search(hit.text):
        return False
    return len({line.groups["devices"] for line in case.hits("net-ib-using")}) == 1


def _beside_the_job(case: Case, hit: Hit) -> bool:
    """Whether a listing tells of a port that no process of the job uses: NCCL names those it uses."""
    used = " ".join(line.groups["devices"] for line in case.hits("net-ib-using"))
    named = _PORT.findall(hit.text) if used and hit.signature == "port-state-down" else []
    return bool(named) and not any(f"{device}:" in used for device in named)


_SAME_PORT = 2  # lines from a port's state to its physical state


def _switched_off(case: Case, hits: list[Hit]) -> bool:
    """Whether a listing tells only of ports that are switched off (Disabled; one without its partner is polling), beside
    active ones: of adapters with two ports one is often not used."""
    off = [hit for hit in hits if "disabled" in hit.text.lower()]
    bare = [hit for hit in hits if "phys" not in hit.text.lower()]  # its physical state is told below
    off += [hit for hit in bare if any(later(one, hit) and one.line - hit.line <= _SAME_PORT for one in off)]
    listed = {hit.file for hit in case.hits("port-active")}
    return all(hit in off and hit.file in listed for hit in hits)


def _up_at_the_start(case: Case, down: Hit) -> bool:
    """Whether a link that went down was up again before NCCL chose its adapters: that job never saw it down."""
    downs = [last for last in case.lasts("kernel-link-down") if last.host == down.host]
    ups = [
        up
        for up in case.hits("kernel-link-up")
        if up.host == down.host and all(_behind(case, up, one) for one in downs)
    ]
    return any(_behind(case, using, up) for up in ups for using in case.hits("net-ib-using"))


def _behind(case: Case, one: Hit, other: Hit) -> bool:
    """Whether ``one`` came after ``other``. Of one file the order tells: the clocks of what passes lines on differ."""
    return later(one, other) or case.after(one, other) is True


def _by_words(case: Case, strengths: tuple[float, ...]) -> list[Candidate]:
    """What the words of the lines that sound like trouble are about, the subject of most lines first."""
    votes = [pair for pair in topics.vote(case) if not all(case.hang.ended_by(hit) for hit in pair[1])]
    return [
        Candidate(
            cause,
            strength,
            f"{playbooks.load(cause).title} (to judge by the words of some lines)",
            hits,
            ranks_of(hits),
            vague=True,
        )
        for strength, (cause, hits) in zip(strengths, votes, strict=False)
    ]


def _last_resort(case: Case) -> list[Candidate]:
    """What is left when no signature is convincing: words, else the log's last lines, else exceptions that only wrap others."""
    if found := _by_words(case, _LIKELIEST):
        return found
    calm = list(case.seen(Role.HARMLESS))
    last = [
        hit
        for hits in case.summary.tails.values()
        for hit in hits[-3:]
        if topics.says_failure(hit.text) and not any(harmless.match(hit.text) is not None for harmless in calm)
    ]
    said = last or [case.ranked(item.hit) for item in case.exceptions.uncaught]
    if not said:
        return []
    if last and all(bystanders.is_of_the_kernel(hit.text) for hit in last):
        title = f"the kernel's log ends with {ending(last[-1].text, 110)!r} and does not say what that did to a job"
        return [Candidate("unrelated", 0.25, title, last, vague=True)]
    title = f"{'the log' if last else 'a traceback'} ends with {ending(said[-1].text, 110)!r} and does not say why"
    return [Candidate("app.rank-exception", 0.25, title, said, ranks_of(said), vague=True)]


_HOLE = re.compile(r"\{(\w+)\}")
# What a title says of a hole, with the words that lead to it: left out where no line tells it.
_SAID = re.compile(r"(?:: | \(\w+ | (?:at|on|to|towards) )\{\w+\}(?:(?::| of )\{\w+\})?\)?")


def told(template: str, hits: list[Hit]) -> str:
    """The title with the words of the first hit that has them all; not every wording of a message says everything."""
    names = set(_HOLE.findall(template))
    groups = next((hit.groups for hit in hits if names <= hit.groups.keys()), None)
    if groups is None:
        return _SAID.sub("", template)
    return _HOLE.sub(lambda hole: shortened(groups[hole.group(1)], 80), template)


def _join(found: Iterable[Candidate]) -> list[Candidate]:
    by_id: dict[str, Candidate] = {}
    for item in sorted(found, key=lambda candidate: -candidate.strength):
        best = by_id.get(item.id)
        if best is None:
            by_id[item.id] = item
            continue
        if item.strength >= 0.3 and not item.vague:  # words alone lift nothing over the threshold of a verdict
            best.strength = min(0.99, best.strength + _EXTRA)
        if best.vague and not item.vague:  # whoever knows the message tells of it
            best.title, best.why, best.page = item.title, item.why, item.page
        best.hits = best.hits + item.hits
        best.final = best.final or item.final
        best.cured = best.cured or item.cured
        best.slows = best.slows or item.slows
        if not best.ranks:
            best.ranks = item.ranks
        best.hosts = best.hosts or item.hosts
    return list(by_id.values())
