"""What somebody tried: a setting was changed, and what had hung or failed then went well. That names what was wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from nccl_doctor.env import versions
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case, nccl_release
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.tables import tables
from nccl_doctor.explain.hang import WORK
from nccl_doctor.explain.lines import in_order, later, shape, shortened
from nccl_doctor.explain.model import Hit, Role


class _Cure(msgspec.Struct, frozen=True):
    """A setting that does without something, what is wrong if that helps, and the lines that show the thing in use."""

    value: str
    cause: str
    used: tuple[str, ...] = ()
    or_else: tuple[str, ...] = ()  # the other causes that the setting does without: then it does not decide


_ANY = r"\S+"
_CURES = {
    "NCCL_P2P_DISABLE": _Cure("1", "gpu.p2p", ("channel-p2p",)),
    "NCCL_P2P_LEVEL": _Cure("LOC|0", "gpu.p2p", ("channel-p2p",)),
    "NCCL_SHM_DISABLE": _Cure("1", "sys.shm", ("channel-shm",)),
    "NCCL_NVLS_ENABLE": _Cure("0", "gpu.fabric-manager"),
    "NCCL_MNNVL_ENABLE": _Cure("0", "gpu.imex"),
    "NCCL_CUMEM_ENABLE": _Cure("0", "sys.container"),
    "NCCL_NET_GDR_LEVEL": _Cure("LOC|0", "ib.gdr", ("channel-gdr",)),
    "NCCL_IB_DISABLE": _Cure("1", "ib.qp-connect", ("channel-net", "net-ib-using"), ("ib.gdr", "ib.gid-index")),
    "NCCL_IB_GID_INDEX": _Cure(_ANY, "ib.gid-index"),
    "NCCL_SOCKET_IFNAME": _Cure(_ANY, "net.wrong-interface"),
    "GLOO_SOCKET_IFNAME": _Cure(_ANY, "net.wrong-interface"),
    "NCCL_NET_PLUGIN": _Cure("none", "net.plugin"),
    "NCCL_PROTO": _Cure(_ANY, "sw.nccl-bug"),
    "NCCL_ALGO": _Cure(_ANY, "sw.nccl-bug"),
}


@diagnosis
def cured_by_a_setting(case: Case) -> Iterable[Candidate]:
    """After something had failed, or had been set up and then did nothing, a setting does without it, and all goes well.

    The later good end is no excuse for what went before: it is the proof of what was wrong there.
    """
    for name, cure in _CURES.items():
        for hit in _set_by_hand(case, name, cure):
            value = hit.groups["value"].strip(" .,;:)'\"")
            before = _failed_before(case, cure, hit) if re.fullmatch(cure.value, value) else []
            after = _well_after(case, hit) if before else []
            for nth, cause in enumerate((cure.cause, *cure.or_else) if after else ()):
                title = f"it went well once {name}={value} was set"
                proof = [hit, *before[:3], after[0]]
                yield Candidate(cause, 0.55 - 0.02 * nth if cure.or_else else 0.8, title, proof, cured=True)
            if after:
                break


def _set_by_hand(case: Case, name: str, cure: _Cure) -> list[Hit]:
    """Where a variable first gets each of its values: by hand, or in the echo of a process that never used the thing."""
    users = {(hit.host, hit.pid) for hit in case.hits(*cure.used)}
    values: dict[str, Hit] = {}
    for hit in case.env.get(name, ()):
        if hit.signature != "env-echo" or (users and (hit.host, hit.pid) not in users):
            values.setdefault(hit.groups.get("value", ""), hit)
    return list(values.values())


def _well_after(case: Case, hit: Hit) -> list[Hit]:
    """The signs that it went well after this line, or this line itself if it says so; none if something failed again."""
    if any(later(line, hit) for line in _symptoms(case)):
        return []
    said = [hit] if _GOOD.search(hit.text) and not _NOT_GOOD.search(hit.text) else []
    return [*said, *(line for line in _lines(case, WORK) if later(line, hit))]


def _failed_before(case: Case, cure: _Cure, hit: Hit) -> list[Hit]:
    """The signs that it went wrong before: a failure, or a run (the thing in use) of which no work came."""
    failed = [line for line in _symptoms(case) if later(hit, line)]
    used = [line for line in case.hits(*cure.used) if later(hit, line)]
    if failed and (used or not cure.used):
        return failed
    used = used if cure.used else _other_run(case, hit)
    worked = [line for line in _lines(case, WORK) if used and later(line, used[-1]) and later(hit, line)]
    return [] if worked else used[-1:]


def _other_run(case: Case, hit: Hit) -> list[Hit]:
    """What NCCL said before a line, if other processes speak after it: none goes on."""
    said = [line for line in case.hits("nccl-init-start", "network-used", "channel-net", "channel-p2p") if line.pid]
    after = {(line.host, line.pid) for line in said if later(line, hit)}
    before = [line for line in said if later(hit, line)]
    return before if after and not any((line.host, line.pid) in after for line in before) else []


def _symptoms(case: Case) -> list[Hit]:
    return in_order(_lines(case, [symptom.name for symptom in case.seen(Role.SYMPTOM)]))


def _lines(case: Case, names: Iterable[str]) -> list[Hit]:
    return [hit for name in names for hit in (*case.hits(name), *case.lasts(name))]


_GOOD = re.compile(
    r"\b(?:PASS(?:ED|ES)?|passe[sd]|works?|worked|fixe[sd]|gone|cure[sd]|no (?:hang|crash|error)s?|runs fine)\b"
)
_NOT_GOOD = re.compile(r"\b(?:not|never|still|neither|no longer)\b|n't\b|FAIL|\bsame (?:hang|error|crash|result)")


@diagnosis
def cured_by_another_nccl(case: Case) -> Iterable[Candidate]:
    """Somebody writes that the same job works with another release of NCCL: then this one is at fault."""
    hits = [hit for hit in case.hits("other-nccl") if _GOOD.search(hit.text) and not _NOT_GOOD.search(hit.text)]
    before = [line for line in _symptoms(case) if hits and later(hits[0], line)]
    if before:
        yield Candidate(
            "sw.nccl-bug", 0.72, "it works with another release of NCCL", [*hits[:3], *before[:2]], cured=True
        )


_MACHINE = re.compile(
    r"[Tt]im(?:ed? ?out|eout)|NCCL|Dist(?:Backend|Network)?Error|Gloo|(?:CUDA|HIP|driver) (?:error|failure)|/dev/|shared memory|"
    r"[Nn]o space left|[Nn]ot permitted|[Pp]ermission denied|Bus error|[Nn]o (?:CUDA|GPUs?|such device)|is_available|pidfd|ptrace|"
    r"resource|too many open|allocate memory|new thread"
)


def _of_the_machine(case: Case, begin: Hit, end: Hit) -> bool:
    """Whether the first exception between two lines, if any, may come of what a machine or a library does; most are the program's own."""
    raised = in_order(item.hit for item in case.summary.tracebacks if later(item.hit, begin) and later(end, item.hit))
    return not raised or (_MACHINE.search(raised[0].text) is not None and "OutOfMemory" not in raised[0].text)


# What a container was given at last, and what it lacked before: the first that fits.
_GIVEN = (
    (re.compile(r"--shm-size|--ipc\b|/dev/shm"), "sys.shm"),
    (re.compile(r"memlock"), "ib.memlock"),
    (re.compile(r"nofile"), "sys.nofile"),
    (re.compile(r"nproc|pids-limit"), "sys.threads"),
    (re.compile(r"infiniband|/dev/uverbs"), "ib.device-not-found"),
    (re.compile(r"imex"), "gpu.imex"),
    (re.compile(r"--gpus|--runtime|--nv\b|/dev/nvidia"), "gpu.not-visible"),
    (re.compile(r"--cap-add|--privileged|--security-opt|--pid\b|--device|/sys\b"), "sys.container"),
)
_DECIDING = 0.5
_NOTHING = re.compile(r"--name\b|--rm\b|-[dit]{1,3}$|-e \w*DEBUG|stack")  # cures nothing
_RUN = re.compile(r"\b(?:(?:docker|podman|nerdctl) run|(?:apptainer|singularity) exec) ")
_ALONE = re.compile(
    r"-[dit]{1,3}|--(?:rm|init|privileged|read-only|detach|interactive|tty|nv|rocm|contain\w*|cleanenv|fakeroot)"
)
_BEGAN = ("world-size", "nccl-version", "nccl-init-start", "nccl-init-complete", "network-used", "cancelled")


def _container(text: str) -> tuple[list[str], list[str]]:
    """The options of a container's command, and what follows them: the image, and the program with its own."""
    found, options = _RUN.search(text), list[str]()
    words = text[found.end() :].split() if found else []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if "=" not in option and not _ALONE.fullmatch(option) and words:
            option += f" {words.pop(0)}"
        options.append(re.sub(r"^(--[\w-]+)=", r"\1 ", option))
    return options, words


def _lacked(options: Iterable[str]) -> list[str]:
    """What a container lacked that was given these options: one cause each, and nothing for an option that may cure anything."""
    causes = (next((cause for pattern, cause in _GIVEN if pattern.search(option)), "") for option in options)
    return list(dict.fromkeys(causes))


@diagnosis
def cured_by_what_a_container_was_given(case: Case) -> Iterable[Candidate]:
    """A container was started, and its program failed or hung; the same one was started again with more, and all went well."""
    commands = in_order(case.hits("container-command"))
    for one, other in itertools.pairwise(commands):
        (before, program), (after, same) = _container(one.text), _container(other.text)
        more = [option for option in after if option not in before and not _NOTHING.match(option)]
        causes = _lacked(more)
        left_out = any(option not in after and not _NOTHING.match(option) for option in before)
        if one.file != other.file or other != commands[-1] or program != same or left_out or not any(causes):
            continue
        wrong = in_order((*_symptoms(case), *(item.hit for item in case.summary.tracebacks)))
        between = [hit for hit in wrong if later(hit, one) and later(other, hit)]
        began = between or [hit for hit in _lines(case, _BEGAN) if later(hit, one) and later(other, hit)]
        well = [hit for hit in _lines(case, WORK) if later(hit, other)]
        stood = began and not any(later(hit, one) and later(other, hit) for hit in _lines(case, WORK))
        if well and (between or stood) and not any(later(hit, other) for hit in wrong):
            title = f"it went well once the container was started with {shortened(' '.join(more), 60)}"
            sure = 0.78 if len(causes) == 1 and _of_the_machine(case, one, other) else 0.46
            for nth, cause in enumerate(filter(None, causes)):
                yield Candidate(
                    cause, sure - 0.02 * nth, title, [other, *between[:3], well[-1], one], cured=sure > _DECIDING
                )


_FASTER = 2.0  # times: no noise of a benchmark
_ASKED = re.compile(r"\b(NCCL_\w+=\S+|\w+_perf\b)|(?<!\S)-(?:np|n|N|H|g|t)[ =]?(\S+)")  # which test, on what, and how


@diagnosis
def better_with_another_nccl(case: Case) -> Iterable[Candidate]:
    """Of the runs of one log, one after the other, those with other releases of NCCL go well, or are far faster."""
    told = _lines(case, ("nccl-version", "engine-names-its-nccl"))
    if len({hit.groups["version"] for hit in told}) < 2 or len(set(map(_release, told))) < 2:
        return
    runs = in_order(told)
    yield from _goes_well(case, runs)
    yield from _faster(case, runs)


def _release(hit: Hit) -> str:
    return nccl_release(hit.groups["version"].partition("+")[0])


def _goes_well(case: Case, runs: list[Hit]) -> Iterable[Candidate]:
    """The last release works, the one before it failed, and somebody says that he changed it."""
    at = max(index for index, hit in enumerate(runs) if _release(hit) != _release(runs[-1]))
    old, new = runs[at], runs[at + 1]
    failed = in_order((*_symptoms(case), *(item.hit for item in case.summary.tracebacks)))
    failed_before = [hit for hit in failed if later(hit, old) and later(new, hit)] or _broke_off(case, old, new)
    works = any(later(line, new) for line in _lines(case, WORK)) and not any(later(hit, new) for hit in failed)
    if works and failed_before and case.hits("other-nccl") and _of_the_machine(case, old, new):
        title = f"with NCCL {_release(new)} instead of {_release(old)} the same run goes well"
        proof = [old, new, *failed_before[:3], *case.hits("other-nccl")[:1]]
        yield Candidate("sw.nccl-bug", 0.72, title, proof, cured=True)


_OF_ALL = re.compile(r"(?<![\d./:-])(\d{1,7}) ?/ ?(\d{1,7})(?![\d./:-])")


def _broke_off(case: Case, old: Hit, new: Hit) -> list[Hit]:
    """The last step of the run that did not come to the number of steps that its own rows tell, where the next run did."""
    steps = [(found, hit) for hit in _lines(case, ("progress",)) if (found := _OF_ALL.search(hit.text))]
    earlier = [(found, hit) for found, hit in steps if later(hit, old) and later(new, hit)][-1:]
    came_to_its_end = any(later(hit, new) and int(found[1]) == int(found[2]) for found, hit in steps)
    return [hit for found, hit in earlier if came_to_its_end and int(found[1]) < int(found[2])]


def _faster(case: Case, runs: list[Hit]) -> Iterable[Candidate]:
    """All releases up to one, or all from one on, reach a fraction of the bus bandwidth of the others in the same test, and nothing
    else that the log tells of the runs differs."""
    reached: dict[str, tuple[Hit, Hit]] = {}
    for average in case.hits("busbw-average"):
        if first := [hit for hit in runs if later(average, hit)]:
            reached[_release(first[-1])] = first[-1], average
    ordered = sorted(reached.values(), key=lambda pair: versions.parse(_release(pair[0])))
    best = max((_rate(average) for _, average in ordered), default=0.0)
    slow = [_rate(average) * _FASTER < best for _, average in ordered]
    if not any(slow) or slow not in (sorted(slow), sorted(slow, reverse=True)):
        return
    at = slow.index(not slow[0])  # the first release that differs from those before
    (bad, low), (good, high) = (ordered[at], ordered[at - 1]) if slow[at] else (ordered[at - 1], ordered[at])
    if not _alike(case, (bad, low), (good, high)):
        return
    without = [hit for hit in case.hits("gdr-disabled") if later(low, hit)]
    title = f"with NCCL {_release(good)} instead of {_release(bad)} the same run is {_rate(high) / _rate(low):.0f} times as fast"
    proof = [bad, good, low, high, *without[:1], *case.hits("other-nccl")[:2]]
    yield Candidate("sw.nccl-bug", 0.7, title, proof, cured=True, slows=True)


def _alike(case: Case, *runs: tuple[Hit, Hit]) -> bool:
    """Whether two runs, from the line that tells NCCL's version to the average, took the same network, as far as the log tells, and
    ran the same test on the same ranks and sizes."""
    used = [(hit, hit.groups["network"]) for hit in _lines(case, ("network-used",))]
    sizes = [(hit, hit.groups["test"]) for hit in _lines(case, ("busbw-row",))]
    for told in (used, sizes):
        one, other = ({what for hit, what in told if later(hit, begin) and later(end, hit)} for begin, end in runs)
        if one and other and one.isdisjoint(other):
            return False
    asked = in_order(case.hits("tests-command"))
    first, then = ([hit.text for hit in asked if later(begin, hit)][-1:] for begin, _ in runs)
    return not first or not then or {*_ASKED.findall(first[0])} == {*_ASKED.findall(then[0])}


def _rate(average: Hit) -> float:
    return float(average.groups["busbw"])


_WENT_WRONG = re.compile(
    r"\b(?:rc|exit(?:ed)?(?: with)?(?: code| status)?|returned)\W{0,3}[1-9]|\bFAIL|\b[Hh](?:ang|ung)|[Tt]imed? ?out|Segmentation|core dumped|\bKilled\b"
)

_WENT_WELL = re.compile(
    r"\b(?:rc|exit(?:ed)?(?: with)?(?: code| status)?|returned)\W{0,3}0\b|\b(?:OK|ok|PASS|passed|done|[Ss]uccess)|busbw|bandwidth|\bstep\b"
)


@diagnosis
def only_some_releases_fail(case: Case) -> Iterable[Candidate]:
    """The same was run with several releases, each under its heading: with some it fails, with others it never does."""
    runs = list(tables(case, "release-heading"))
    bad = [(hit, wrong) for hit, rows in runs if (wrong := [row for row in rows if _WENT_WRONG.search(row.text)])]
    # A loop that tells of failures only says nothing of a release that works; of the last one there may be more to come.
    worked = [hit for hit, rows in runs[:-1] if not rows]
    worked += [hit for hit, rows in runs if any(_WENT_WELL.search(row.text) for row in rows)]
    failed = [hit for hit, _ in bad]
    good = [hit for hit in worked if hit not in failed and shape(hit.text) in [shape(one.text) for one in failed]]
    if bad and good:
        names = ", ".join(hit.groups["release"].strip("=#*->[] ") for hit, _ in bad)
        lines = [line for hit, rows in bad for line in (hit, *rows[:2])]
        title = f"of the releases compared it fails only with {names}"
        yield Candidate("sw.nccl-bug", 0.78, title, [*lines, *good[:3]], cured=True)
