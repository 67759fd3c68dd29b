"""torchruns that wait for each other: a job that never started, or whose host does not come back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from nccl_doctor.facts.fold import counted, few
from nccl_doctor.facts.job import Job, Process
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.doing import frames_of
from nccl_doctor.rules.engine import Fleet, facts_of, fleet_rule
from nccl_doctor.rules.job_words import EARLY_S, QUOTED
from nccl_doctor.rules.running_jobs import processes_of
from nccl_doctor.rules.units import duration

_AGENT = "torch/distributed/elastic/agent/server/api.py"
_PORT = "29500"  # torchrun's own, where none is given


class Launcher(msgspec.Struct, frozen=True):
    """A torchrun that waits in the rendezvous, at both looks. ``seen``: its stack says so; else it has only started no rank."""

    host: str
    process: Process
    seen: bool = True

    @property
    def endpoint(self) -> str:
        """Where it meets the others: host and port, and the job's name if it has one."""
        options = self.process.options
        master = f"{options.get('master-addr', '?')}:{options.get('master-port', _PORT)}"
        name = options.get("rdzv-id", "")
        return (options.get("rdzv-endpoint") or master) + (f" ({name})" if name else "")

    @property
    def hosts_wanted(self) -> int:
        """How many hosts ``--nnodes`` asks for, at least; 1 where it is not given, 0 where it is no number."""
        text = self.process.options.get("nnodes", "1").partition(":")[0]
        return int(text) if text.isdecimal() else 0

    @property
    def proof(self) -> list[Evidence]:
        """Its options and its place in torchrun's code, as evidence."""
        words = " ".join(f"--{name} {value}" for name, value in sorted(self.process.options.items()))
        frames = frames_of(self.process)
        return [
            Evidence(
                f"torchrun {words}, {duration(self.process.age_s)} old", f"/proc/{self.process.pid}", host=self.host
            ),
            Evidence(" < ".join(map(str, frames[:3])), "py-spy dump", host=self.host)
            if self.seen
            else Evidence("it has started no rank; its stack was not taken", "/proc", host=self.host),
        ]


def waiting_launchers(fleet: Fleet) -> list[Launcher]:
    """The torchruns that wait in the rendezvous; none where one of the jobs that run was chosen.

    Where no stack was taken, those that have started no rank, and are fewer than ``--nnodes``.
    """
    every = processes_of(fleet)
    parents = {(host, process.parent) for host, process in every}
    found = []
    for host, process in every if not fleet.plan.job else ():
        looks = range(len(process.readings))
        seen = any(frames_of(process, at) for at in looks)
        idle = process.readings[-1] is not None and (host, process.pid) not in parents
        if process.role == "launcher" and (all(_meets(process, at) for at in looks) if seen else idle):
            found.append(Launcher(host, process, seen))
    there = Counter(launcher.endpoint for launcher in found)
    return [one for one in found if one.seen or there[one.endpoint] < one.hosts_wanted]


def _meets(process: Process, at: int) -> bool:
    return any(frame.short == _AGENT and frame.function.endswith("_rendezvous") for frame in frames_of(process, at))


@fleet_rule("job", "hang.rendezvous", "hang.rendezvous.endpoints", "hang.rendezvous.node-rank")
def rendezvous(fleet: Fleet) -> Iterator[Finding]:
    """No torchrun waits in the rendezvous for hosts that have none, ask elsewhere, or bear the number of another.

    ``--nnodes`` says how many there must be. Until all are there no rank is started, and nothing is logged. Without py-spy
    whoever has started no rank is taken to wait, which is less certain.
    """
    groups: dict[str, list[Launcher]] = defaultdict(list)
    for launcher in waiting_launchers(fleet):
        groups[launcher.endpoint].append(launcher)
    occupied = {host for host, _ in processes_of(fleet)}
    idle = [host for host in facts_of(fleet.hosts, Job) if host not in occupied]
    short = {endpoint: group for endpoint, group in groups.items() if len(group) < group[0].hosts_wanted}
    if len(short) > 1 and sum(map(len, short.values())) <= max(group[0].hosts_wanted for group in short.values()):
        yield _different_endpoints(short)
        return
    for endpoint, group in groups.items():
        twice = _same_number(group)
        if twice:
            yield _numbered_twice(twice)
        elif endpoint in short:
            yield _incomplete(group, idle)
        else:
            yield _all_there(group)


def _hosts(group: list[Launcher]) -> list[str]:
    return sorted({launcher.host for launcher in group})


def _sure(group: list[Launcher], confidence: float) -> float:
    """The confidence, lower while the youngest torchrun has only just been started, or where no stack was taken of one."""
    if not all(launcher.seen for launcher in group):
        confidence = min(confidence, 0.6)
    return confidence if min(launcher.process.age_s for launcher in group) > EARLY_S else min(confidence, 0.5)


def _incomplete(group: list[Launcher], idle: list[str]) -> Finding:
    """Fewer torchruns than ``--nnodes``: to blame are the hosts that were looked at and have none."""
    lacking = group[0].hosts_wanted - len(group)
    absent = idle if len(idle) <= lacking else []
    more = counted(lacking, "more host")
    none = f": no torchrun runs on {few(absent)}" if absent else ", and the hosts that were looked at have none of them"
    return finding(
        "hang.rendezvous",
        Severity.FAIL if absent else Severity.WARN,
        f"torchrun on {few(_hosts(group))} waits at {group[0].endpoint} for {more}{none}",
        [item for launcher in group[:QUOTED] for item in launcher.proof],
        confidence=_sure(group, 0.9 if len(absent) == lacking else 0.6),
        hosts=absent or _hosts(group),
        fixes=(
            Fix(
                "start it there, with the same --nnodes and endpoint; or look why it ended",
                host=absent[0] if absent else "",
            ),
            Fix("name all hosts of the job", "nccl-doctor hang --hosts HOSTFILE"),
        ),
    )


def _all_there(group: list[Launcher]) -> Finding:
    return finding(
        "hang.rendezvous",
        Severity.WARN,
        f"all {len(group)} torchruns of --nnodes are there, and yet wait at {group[0].endpoint}",
        [item for launcher in group[:QUOTED] for item in launcher.proof],
        confidence=_sure(group, 0.7),
        hosts=_hosts(group),
        fixes=(
            Fix(
                "does that port answer from every host?",
                f"nccl-doctor check -H {','.join(_hosts(group))} --stage ports",
            ),
            Fix("do all say the same --rdzv-id, --rdzv-backend and --nnodes?"),
        ),
    )


def _different_endpoints(groups: dict[str, list[Launcher]]) -> Finding:
    told = "; ".join(f"{few(_hosts(group))} at {endpoint}" for endpoint, group in sorted(groups.items()))
    every = [launcher for group in groups.values() for launcher in group]
    return finding(
        "hang.rendezvous.endpoints",
        Severity.FAIL,
        f"the torchruns wait for each other in different places: {told}",
        [item for group in groups.values() for item in group[0].proof[:1]],
        confidence=_sure(every, 0.85),
        hosts=_hosts(every),
        fixes=(Fix("give all hosts one --rdzv-endpoint and --rdzv-id (or --master-addr and --master-port)"),),
    )


def _same_number(group: list[Launcher]) -> list[Launcher]:
    """The torchruns that share a ``--node-rank``. Only the static rendezvous goes by that number."""
    numbered: dict[str, list[Launcher]] = defaultdict(list)
    for launcher in group:
        if not launcher.process.options.get("rdzv-endpoint"):
            numbered[launcher.process.options.get("node-rank", "0")].append(launcher)
    return next((sharing for sharing in numbered.values() if len(sharing) > 1), [])


def _numbered_twice(sharing: list[Launcher]) -> Finding:
    number = sharing[0].process.options.get("node-rank", "0")
    return finding(
        "hang.rendezvous.node-rank",
        Severity.FAIL,
        f"{len(sharing)} torchruns, on {few(_hosts(sharing))}, say that they are host {number} (--node-rank)",
        [item for launcher in sharing[:QUOTED] for item in launcher.proof[:1]],
        confidence=_sure(sharing, 0.9),
        hosts=_hosts(sharing),
        fixes=(Fix("number the hosts: --node-rank 0, 1, ... each once; or use --rdzv-endpoint, which needs none"),),
    )
