"""The case: everything the readers found, with the questions that diagnoses ask of it."""

from __future__ import annotations

import functools

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import watchdogs
from nccl_doctor.explain.course import DISTRIBUTED, Course
from nccl_doctor.explain.exceptions import Exceptions
from nccl_doctor.explain.hang import Hang
from nccl_doctor.explain.lines import hosts_of, just_below
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.processes import failure_table
from nccl_doctor.explain.slowdown import communicating
from nccl_doctor.explain.summary import Summary

_VERSIONS = (
    ("nccl-version", "nccl"),
    ("nccl-error-version", "nccl"),
    ("torch-version", "torch"),
    ("driver-version", "driver"),
    ("plugin-ofi-version", "aws-ofi-nccl"),
)
_IGNORED = 24  # lines of an exception that Python passes over, with its traceback
_VERSION = re.compile(r"\d[\w.]*(?:\+\w+[\d.]*)?")
_ASSIGNED = re.compile(r"\b((?:TORCH_NCCL|NCCL|GLOO|CUDA|MASTER)_[A-Z0-9_]{2,50})\s?[=:]\s?([^\s'\",;]{1,120})")
# A program that tells what to set, one thing a line, has not set it.
_ADVISED = re.compile(
    r"^\W*\d+\. export |\b[Pp]lease (?:set|try|export|use)\b"
    r"|\b(?:[Ss]et|[Tt]ry|[Uu]se|[Rr]un with|[Cc]onsider(?: setting| using)?)\s[`'\"]?[A-Z][A-Z0-9_]{3,40}=\S{1,40}\s"
    r"(?:to|for|if|instead|may|might|can|could|will|would)\b"
    r"|\b(?:[Ss]etting|[Uu]sing)\s[`'\"]?[A-Z][A-Z0-9_]{3,40}=\S{1,40}\s(?:instead|may|might|can|could|would)\b"
)

MOST_RANKS = 1_000_000  # more than any job has: a larger number is none of ranks


class Case(Logs):
    """All that is known about one set of logs: its lines by signature, and what they say of the job."""

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary)
        self.course = Course(self)
        self.hang = Hang(self, self.course)
        self.exceptions = Exceptions(self, self.course)
        self.broken_rules: dict[str, str] = {}  # diagnoses that raised, by name, and what

    @functools.cached_property
    def world_told(self) -> int:
        """The number of ranks that a line of NCCL or of the program tells; 0 if none does."""
        sizes = [int(hit.groups["nranks"]) for hit in self.hits("nccl-init-start", "nccl-init-complete")]
        sizes += [int(hit.groups["world"]) for hit in self.hits("world-size")]
        return max((size for size in sizes if size <= MOST_RANKS), default=0)

    @functools.cached_property
    def world(self) -> int:
        """The number of ranks, as far as the logs say: there may be more, of higher numbers; 0 if they do not."""
        # Who is listed may not have said a word.
        listed = (int(hit.groups["rank"]) for hit in self.hits("torchrun-rank", "rank-itself"))
        return max([self.world_told, *(rank + 1 for rank in (*self.summary.ranks, *listed) if rank < MOST_RANKS)])

    @functools.cached_property
    def nccl_hosts(self) -> set[str]:
        """Host names in NCCL's own lines and in torchrun's failure table."""
        names = hosts_of(self.hits("nccl-init-start", "nccl-init-complete", "bootstrap-using"))
        return names or {hit.groups["host"] for hit in self.hits("torchrun-host")}

    @functools.cached_property
    def nodes(self) -> int:
        """The number of nodes, as far as the logs say (NCCL's nNodes, distinct hosts, nccl-tests' list); 0 if they do not."""
        told = [
            int(hit.groups["nodes"]) for hit in self.hits("nccl-nodes", "nnodes") if hit.groups["nodes"].isdecimal()
        ]
        tested = {hit.groups["host"] for hit in self.hits("tests-device")}
        return max([*told, len(self.nccl_hosts), len(tested), int(self.has("one-node"))])

    @functools.cached_property
    def between_hosts(self) -> bool:
        """Whether anything shows that the job's data goes from host to host."""
        return self.nodes > 1 or self.has("channel-net")

    @functools.cached_property
    def gpudirect_off(self) -> list[Hit]:
        """The lines that say that GPUDirect RDMA is off for whole adapters."""
        return self.hits("peermem-missing") or [hit for hit in self.hits("gdr-disabled") if "HCA" in hit.text]

    @functools.cached_property
    def sockets(self) -> list[Hit]:
        """The lines in which NCCL says that its network is TCP sockets."""
        return [hit for hit in self.hits("network-used") if hit.groups["network"].startswith("Socket")]

    @functools.cached_property
    def communicating(self) -> list[Hit]:
        """Steps that consist of communication mostly."""
        return communicating(self)

    @functools.cached_property
    def distributed(self) -> bool:
        """Whether anything in the logs shows a distributed job."""
        several = self.world_told > 1 or any(rank > 0 for rank in self.summary.ranks)
        return several or self.has(*DISTRIBUTED) or any("MPI_ABORT" in hit.text for hit in self.hits("mpi-abort"))

    def ignored(self, hit: Hit) -> bool:
        """Whether a line is of an exception that Python passed over, raised while an object or the interpreter was taken down."""
        heads = (*self.hits("exception-ignored"), *self.lasts("exception-ignored"))
        return any(just_below(hit, head, _IGNORED) for head in heads)

    @functools.cached_property
    def env(self) -> dict[str, list[Hit]]:
        """Environment variables seen set, with the lines that set them; group ``value`` holds the value."""
        found: dict[str, list[Hit]] = {}
        for hit in self.hits("env-echo", "env-set"):
            if hit.signature == "env-echo":
                found.setdefault(hit.groups["name"], []).append(hit)
                continue
            for name, value in () if _ADVISED.search(hit.text) else _ASSIGNED.findall(hit.text):
                groups = {"name": name, "value": value}
                found.setdefault(name, []).append(msgspec.structs.replace(hit, groups=groups))
        return found

    def value(self, name: str) -> str | None:
        """The (first) value of an environment variable, or None if it was not seen set."""
        hits = self.env.get(name)
        return hits[0].groups.get("value", "").strip().strip("'\"").rstrip(".") if hits else None

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """Versions of NCCL, torch, CUDA and the driver that the logs name; several are joined by comma."""
        found: dict[str, set[str]] = {}
        for signature, name in _VERSIONS:
            for told in {hit.groups.get("version", "") for hit in self.hits(signature)}:
                version = _VERSION.match(told)
                if version:
                    text = version.group().rstrip(".")
                    number, _, cuda = text.partition("+cuda")
                    found.setdefault(name, set()).add(nccl_release(number) if name == "nccl" else text)
                    if cuda:
                        found.setdefault("cuda", set()).add(cuda)
        return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}

    @functools.cached_property
    def work(self) -> list[watchdogs.Work]:
        """What each rank's watchdog said about its last work, by process group."""
        return watchdogs.works(self.hits("watchdog-status"), self.hits("watchdog-timeout"))

    @functools.cached_property
    def waits(self) -> list[watchdogs.Work]:
        """The works that timed out."""
        return [item for item in self.work if item.hit]

    @functools.cached_property
    def exits(self) -> dict[int, int]:
        """Exit code of each rank that torchrun's table names (negative: signal)."""
        found: dict[int, int] = {}
        for rank, hit in failure_table(self.hits("torchrun-rank", "torchrun-exitcode")):
            found.setdefault(rank, int(hit.groups["code"]))
        return found

    @functools.cached_property
    def exit_codes(self) -> set[int]:
        """All exit codes named anywhere."""
        return {int(hit.groups["code"]) for hit in self.hits("torchrun-exit", "torchrun-exitcode")}


def nccl_release(text: str) -> str:
    """A release of NCCL: torch before 1.13 prints the code 21003 of 2.10.3 as 21.0.3, in the manner of the codes before 2.9."""
    old = re.fullmatch(r"(2\d)\.(\d)\.(\d{1,2})", text)
    if old is None:
        return text
    code = int(old.group(1)) * 1000 + int(old.group(2)) * 100 + int(old.group(3))
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
