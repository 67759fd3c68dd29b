"""What to do: fixes from the playbooks, variables as env recommend knows them; the next command if undecided."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nccl_doctor.env import recommend, versions
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.recommend_hang import recorder
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import related
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import place, ranks_of, shape
from nccl_doctor.explain.model import Cause, Verdict
from nccl_doctor.facts.fold import ranges
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import EnvAdvice, Evidence, Fix


def fix(
    case: Case, page: playbooks.Playbook, heading: str, evidence: tuple[Evidence, ...], hosts: Collection[str]
) -> Fix:
    """What the playbook says under this heading, with the device that the first line quoted names, the hosts to blame, and what
    of it was done already."""
    text = page.section(heading)
    told = _here(_first_paragraph(text), evidence)
    if few := _few(hosts):
        told = re.sub(r"\bNODE(?=`)", few, told)
    done = [setting for setting in _set_here(case) if re.search(rf"\b{re.escape(setting)}(?!\w)", told)]
    if done:
        told += f" ({' and '.join(done)} {'is' if len(done) == 1 else 'are'} set already.)"
    return Fix(told, _here(_first_command(text), evidence))


def _few(hosts: Collection[str]) -> str:
    """These hosts as an option's value, if they are few and no more than names: a log must not write what is pasted into a shell."""
    plain = all(re.fullmatch(r"\w[\w.:-]{0,252}", host) for host in hosts)
    return ",".join(sorted(hosts)) if plain and len(hosts) <= _FEW_HOSTS else ""


def _set_here(case: Case) -> list[str]:
    return [f"{name}={case.value(name)}" for name in sorted(case.env)]


def variables(case: Case, id: str, page: playbooks.Playbook, evidence: tuple[Evidence, ...]) -> tuple[EnvAdvice, ...]:
    """What to set and to unset for a cause: what ``env recommend`` knows, for these logs."""
    nccl, set_here = _oldest(case, "nccl"), {name: case.value(name) or "" for name in case.env}
    if case.gpudirect_off:
        set_here.setdefault("NCCL_NET_GDR_LEVEL", "LOC")  # no advice to switch off what is off
    quoted = " ".join(item.text for item in evidence)
    blamed = [name for name in set_here if name in quoted and related.concerns(name, id)]
    wrong = [name for name in blamed if name.endswith("_SOCKET_IFNAME") and id == "net.wrong-interface"]
    assignments = [Assignment(name, set_here[name], how=How.LOG) for name in blamed]
    beside = bool(evidence) and _BESIDE_NCCL.search(evidence[0].text) and not _says(case, "nccl")
    return recommend.workarounds(() if beside else page.env, nccl, set_here) + recommend.removals(
        assignments, nccl, _oldest(case, "torch"), wrong
    )


# Who moves data between GPUs and adapters without NCCL, which its variables do not reach.
_BESIDE_NCCL = re.compile(
    r"\bUCX\b|ib_mlx5_log|nixl|mooncake|rdma_context\.cpp|transfer_engine|custom_all_reduce|nvshmem|\bM?OFI\b|libfabric|\bMPI|"
    r"\bpml|mtl_|btl_|oneCCL|\bCCL_|HCCL|\bEI\d{4}|gloo",
    re.IGNORECASE,
)


# By the area of causes: what a playbook writes for any device, how the lines name the one at hand, and how it is written.
_DEVICES = (
    ("ib.", "mlx5_0", re.compile(r"\bmlx5_(?:bond_)?\d+\b"), "{}"),
    ("gpu.", "-i N", re.compile(r"PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b"), "-i {}.0"),
)


def _here(text: str, evidence: tuple[Evidence, ...]) -> str:
    """A playbook's words with the device that the first line quoted names, if it names one."""
    for _, placeholder, pattern, written in _DEVICES:
        named = set(pattern.findall(evidence[0].text)) if evidence else set()
        if len(named) == 1:
            text = text.replace(placeholder, written.format(named.pop()))
    return text


def device(cause: Cause) -> str:
    """The GPU or RDMA device that the deciding line names, if it names one and no line like it names another."""
    alike = [item.text for item in cause.evidence if shape(item.text) == shape(cause.evidence[0].text)]
    for area, _, pattern, _ in _DEVICES:
        named = set(pattern.findall(" ".join(alike)))
        if cause.id.startswith(area) and len(named) == 1:
            return str(named.pop())
    return ""


def _first_paragraph(text: str) -> str:
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("```") or (not line.strip() and kept):
            break
        if line.strip():
            kept.append(line.strip())
    return " ".join(kept)


def _first_command(text: str) -> str:
    block = re.search(r"```\w*\n(.*?)```", text, re.DOTALL)
    if not block:
        return ""
    lines = [line.split("  #")[0].strip() for line in block.group(1).splitlines()]
    return next((line for line in lines if line and not line.startswith("#")), "")


def _oldest(case: Case, what: str) -> str:
    """The oldest of the versions seen; empty if none was: what it does not know has no effect somewhere."""
    found = re.findall(r"\d+(?:\.\d+)+", case.versions.get(what, ""))
    return min(found, key=versions.parse, default="")


_FEW_HOSTS = 4
_SHOWN_THERE = ("gpu.", "sys.")  # on the host itself, without another one beside it
_NETWORK = "nccl-doctor check --stage connectivity,ports,interfaces --hosts HOSTFILE"
_HANG = "nccl-doctor hang --hosts HOSTFILE"
_NEXT = {
    "net.": _NETWORK,
    "ib.": "nccl-doctor check --stage infiniband --hosts HOSTFILE",
    "gpu.": "nccl-doctor check --stage gpu --hosts HOSTFILE",
    "sys.": "nccl-doctor check --stage system --hosts HOSTFILE",
    "sw.": "nccl-doctor check --stage software --hosts HOSTFILE",
    "env.": "nccl-doctor env lint",
    **dict.fromkeys(("launch.rdzv", "launch.world-size"), "nccl-doctor check --stage connectivity --hosts HOSTFILE"),
}


# NCCL's lines would add nothing to a cause with one of these pages.
_WITHOUT_NCCL = (
    "app.",
    "launch.",
    "unrelated",
    "gpu.",
    "sys.",
    "host.",
    "net.plugin.transport",
    "sw.library-conflict.mpi",
)


def _closed_first(case: Case) -> str:
    """The hosts that others name as the peer that closed, and that say nothing themselves; empty if there are many."""
    named = [re.sub(r"<\d+>$", "", hit.groups.get("peer", "")) for hit in case.hits("peer-closed")]
    hosts = sorted({name for name in named if re.fullmatch(r"[\w.:-]{2,100}", name)} - case.summary.hosts)
    return ", ".join(hosts) if len(hosts) <= 3 else ""


# What goes without the suspect: the same command tells in a minute whether it was that.
_TRIALS = {"gpu.p2p": "NCCL_P2P_DISABLE=1", "sys.shm": "NCCL_SHM_DISABLE=1"}
_SHOWN_BY_STACKS = ("app.straggler-timeout", "app.collective-mismatch")


def _says(case: Case, words: str) -> bool:
    """Whether any line kept has these words, which are given in lower case, in any case."""
    summary = case.summary
    kept = [*(group.hits for group in summary.groups.values()), *summary.tails.values(), *summary.before.values()]
    return any(words in hit.text.lower() for hits in kept for hit in hits)


def _without_nccl(case: Case, verdict: Verdict, best: Cause | None) -> bool:
    """Whether NCCL's INFO lines would add nothing: a cause found beside NCCL, a call that torch or MPI refused, a job that
    speaks of Gloo only."""
    if best is not None and verdict is not Verdict.UNDECIDED and best.playbook.startswith(_WITHOUT_NCCL):
        return True
    beside = _says(case, "gloo") or (best is not None and best.id == "app.pg-misuse")
    return beside and not _says(case, "nccl")


# Who prints in a candidate's lines -> what makes it say more. UCX's documentation (UCX_LOG_LEVEL), fi_log(3), NVSHMEM's
# environment variables, UCC's (UCC_LOG_LEVEL), Intel MPI's developer reference (I_MPI_DEBUG), torch's docs on logging (Gloo);
# read 2026-11.
_SAYS_MORE = (
    (re.compile(r"\bUCX\b|\buc[pt]_|pml_ucx"), "UCX_LOG_LEVEL=info"),
    (re.compile(r"\bUCC\b|\b[TC]L_[A-Z]{3,}\b"), "UCC_LOG_LEVEL=info"),
    (re.compile(r"libfabric|\bOFI\b|\bfi_[a-z]+|\befa_", re.IGNORECASE), "FI_LOG_LEVEL=info"),
    (re.compile(r"nvshmem", re.IGNORECASE), "NVSHMEM_DEBUG=INFO"),
    (re.compile(r"\bMPI startup\(\)|\bI_MPI_"), "I_MPI_DEBUG=10"),
    (re.compile(r"\bgloo\b", re.IGNORECASE), "TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL"),
)
_CRASHES = ("segfault", "crash-handler", "native-assertion", "native-check")
_OF_CRASHES = ("sw.nccl-bug", "sw.library-conflict", "app.rank-exception")


_TRIED_BY_NCCL = ("net.slow", "gpu.p2p", "ib.gdr")  # of NCCL_RUN_DIAGNOSTICS (2.31 and later)


def _louder(case: Case, best: Cause) -> str:
    """How to run again so that who printed the candidate's lines says more; empty if it says all it can."""
    said = "\n".join(item.text for item in best.evidence)
    loud = (how for who, how in _SAYS_MORE if who.search(said) and not _says(case, how.partition("=")[0].lower()))
    return next(loud, "")


def next_steps(case: Case, verdict: Verdict, causes: tuple[Cause, ...]) -> tuple[str, ...]:
    """The commands or inputs that would decide (or confirm); the most telling first."""
    if verdict is Verdict.HEALTHY:
        return (f"if the job stands still now: {_HANG}",) if case.course.no_end_told else ()
    steps = [proof.next for proof in case.summary.proofs[:2]]
    best = causes[0] if causes else None
    if verdict is Verdict.UNDECIDED or (best and best.confidence < 0.8):
        gone = _closed_first(case) if best and best.id == "net.peer-lost" else ""
        if gone:
            steps.insert(0, f"collect the log and the kernel log (dmesg -T) of {gone}: it closed its connections first")
        steps += _to_decide(case, verdict, best)
    return tuple(dict.fromkeys([*steps, *(_to_confirm(best) if best else ())]))


def _to_decide(case: Case, verdict: Verdict, best: Cause | None) -> Iterator[str]:
    """What would tell which cause it is."""
    heard = case.summary.ranks | ranks_of(case.hits("nccl-init-start", "nccl-init-complete"))
    quoted = {(item.source, item.line) for item in best.evidence} if best else set()
    raised = any(place(item.hit) in quoted for item in case.exceptions.ordinary)  # its own words are here
    unheard = [] if raised or not best else [rank for rank in best.ranks if rank not in heard]
    missing = missing_ranks(case) or ranges(unheard)
    if missing:
        yield f"collect the logs of {named(missing)}: these hold nothing that was said there, and the others only waited"
    elif best and best.id == "app.rank-exception" and not raised:
        who = named(ranges(list(best.ranks))) if best.ranks else "the worker that ended first"
        yield f"collect the whole log of {who} (torchrun: --log-dir logs --redirects 3): it alone says why"
    if verdict is Verdict.UNDECIDED and best and best.id in ("launch.world-size", "launch.rdzv") and not missing:
        yield "collect what the launcher printed on every node: whether it started, as which of how many, for which address and port"
    if best and best.id in _OF_CRASHES and case.has(*_CRASHES) and not case.has("stack-process"):
        yield "run again with PYTHONFAULTHANDLER=1: a process that crashes then prints the Python line it was in"
    if best and (how := _louder(case, best)):
        yield f"run again with {how}: the library then logs what it tried"
    if verdict is Verdict.UNDECIDED and best and best.id in _SHOWN_BY_STACKS and not case.exceptions.ordinary:
        when = "before you end it the next time" if case.hang.interrupted else "if it still hangs"
        yield f"{when}: {_HANG}"
        if case.has("socket-timeout") and not case.has("watchdog-timeout"):
            yield f"lost packets look the same: {_NETWORK}"
    if (
        verdict is Verdict.UNDECIDED
        and best
        and best.id in _TRIALS
        and not case.hang.only_began
        and _TRIALS[best.id] not in _set_here(case)
    ):
        yield f"run once with {_TRIALS[best.id]}: if that works, it is this"
    nccl = _oldest(case, "nccl")
    if best and best.id in _TRIED_BY_NCCL and nccl and versions.at_least(versions.parse(nccl), "2.31"):
        yield "run once with NCCL_RUN_DIAGNOSTICS=1: NCCL then tries every pair of GPUs and every adapter before the job begins"
    seen = case.has("nccl-init-start", "bootstrap-using", "network-used")
    if verdict is Verdict.UNDECIDED and (case.hang.only_began or (seen and not best)):
        if not (best and best.id in _SHOWN_BY_STACKS):
            yield f"if the job stands still: {_HANG}"
        yield "if it went on: give explain its own output as well"
    if not seen and not _without_nccl(case, verdict, best):
        if _says(case, "nccl info"):  # any such line: what is missing was cut away, not switched off
            yield "give the whole log: the first INFO lines of NCCL are missing from these"
        elif case.distributed or _says(case, "nccl") or _says(case, "c10d"):
            yield "run again with NCCL_DEBUG=INFO: these logs lack the INFO lines of NCCL"
        elif not best:
            yield "give what the job itself printed: none of these lines is known to come from a distributed job"
    if case.has("recorder-dumped") and not case.summary.dumps:
        yield f"give explain what the flight recorder wrote as well, of every rank: {_where_dumped(case)}"
    elif case.has("watchdog-timeout") and not case.has("desync-lagging", "fingerprint-mismatch"):
        yield _record_again(_oldest(case, "torch"))


def _to_confirm(best: Cause) -> Iterator[str]:
    """What would show that it is this cause."""
    if any(item.name.endswith("_SOCKET_IFNAME") for item in playbooks.load(best.playbook).env):
        yield "nccl-doctor env recommend --hosts HOSTFILE"
    few = _few(best.hosts) if best.playbook.startswith(_SHOWN_THERE) else ""
    where = f"-H {few}" if few else "--hosts HOSTFILE"
    yield from (
        command.replace("--hosts HOSTFILE", where)
        for start, command in _NEXT.items()
        if best.playbook.startswith(start)
    )
    if best.id == "sys.host-oom":
        where = best.hosts[0] if best.hosts else "the host of the killed rank"
        yield f"on {where}: sudo dmesg -T | grep -i -E 'oom|killed process'"


def _record_again(torch: str) -> str:
    """How to run again so that a hang leaves evidence behind: what ``env recommend --for hang`` sets."""

    def settings(release: str) -> str:
        return " ".join(f"{item.name}={item.value}" for item in recorder(release))

    if torch and not settings(torch):
        return f"run again with a newer PyTorch: {torch} has no flight recorder (2.2 and later)"
    told = settings(torch) if torch else f"{settings('2.8')} (before torch 2.8: {settings('2.6')})"
    return f"run again with {told}, and give the dumps to explain"


def _where_dumped(case: Case) -> str:
    """The files that the recorder says it wrote, but for the rank at the end; PyTorch's own place where it does not say."""
    paths = (hit.groups.get("path", "").rstrip("0123456789. ") for hit in case.hits("recorder-dumped"))
    told = next(filter(None, paths), "")
    return (
        f"{told}*"
        if told
        else "~/.cache/torch/comm_lib_trace_rank_* on its host, or where TORCH_FR_DUMP_TEMP_FILE says"
    )


def named(ranks: str) -> str:
    """``rank 3``, ``ranks 3-5``: of numbers that are folded."""
    return f"rank {ranks}" if ranks.isdigit() else f"ranks {ranks}"


def missing_ranks(case: Case) -> str:
    """The ranks that no line comes from, folded, if most others have lines."""
    seen = case.summary.ranks
    if case.world < 2 or len(seen) < case.world / 2 or len(seen) >= case.world:
        return ""
    absent = [rank for rank in range(case.world) if rank not in seen]
    return ranges(absent)
