"""What others say of a node: that it was rebooted, drained, or failed a health check."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.lines import hosts_of, later, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix

_DAYS = re.compile(r"(\d+) days?")
_MINUTES = re.compile(r"(\d+) min|\b(0?\d):(\d\d),")


@diagnosis
def rebooted_host(case: Case) -> Iterable[Candidate]:
    """uptime on several hosts: one has been up for minutes, the others for days. It was rebooted under the job."""
    hits = case.hits("uptime")
    long = [hit for hit in hits if _DAYS.search(hit.groups["told"])]
    fresh = [hit for hit in hits if hit not in long and _MINUTES.search(hit.groups["told"])]
    if long and fresh and len(fresh) < len(hits) / 2:
        hosts = hosts_of(fresh)
        title = f"{', '.join(sorted(hosts)) or 'a host'} was rebooted, the others were not"
        yield Candidate("sys.node-failure", 0.72, title, [*fresh, *long[:2]], hosts=hosts)


# Words of a node's drain reason (Slurm's own, LBNL NHC, the clouds' checks, administrators) -> cause.
REASONS: tuple[tuple[str, str], ...] = (
    (
        r"not responding|unexpectedly rebooted|node.?fail|low realmemory|\bdimm\b|\bmce\b|machine check",
        "sys.node-failure",
    ),
    (r"check_hw_ib|check_ib|ib_link|link_flap|\bIB\b.*(?:port|link|down)|infiniband|\bhca\b|mlx5", "ib.port-down"),
    (r"ecc|row.?remap|page.?retire|\bdbe\b", "gpu.ecc"),
    (r"nvlink|nvswitch|sxid", "gpu.nvlink"),
    (r"throttl|thermal|temperature|power|\bpsu\b", "gpu.thermal-power"),
    (r"gres/gpu count", "gpu.not-visible"),
    (
        r"gpu_count|gpu count|missing gpu|\bxid\b|gpu.*(?:lost|fell|fall|not found|hung|dead|reset)|off the bus",
        "gpu.fell-off-bus",
    ),
    (r"fabric.?manager", "gpu.fabric-manager"),
    (r"check_fs|mount|\bnfs|lustre|gpfs|weka|beegfs|stale", "sys.clock-or-dns-or-fs"),
    (r"no space|disk full|% full|\bquota", "sys.disk-full"),
    (r"check_hw_physmem|memory|\bmem\b", "sys.host-oom"),
)


def cause_of(reason: str, table: tuple[tuple[str, str], ...] = REASONS) -> str:
    """The cause that a drain reason or a check's name speaks of; empty if its words are not known."""
    return next((cause for words, cause in table if re.search(words, reason, re.IGNORECASE)), "")


_SINFO = re.compile(
    r"^\W*(?P<reason>\S.{0,160}?)\s{1,80}\S{1,32}\s{1,80}(?P<since>\d{4}-\d\d-\d\dT\S+|Unknown)\s{1,80}(?P<nodes>\S+)"
)
_BEFORE_THE_JOB = 0.4  # Slurm starts no job on a drained node


def _ours(case: Case, nodes: str) -> bool:
    """Whether a list of nodes names one of the job; yes where NCCL's lines name none."""
    from nccl_doctor.inventory import names, nodesets  # few logs hold such a table

    try:
        named = set(nodesets.expand(nodes))
    except names.BadName:
        named = {nodes}
    known = {host.partition(".")[0] for host in case.nccl_hosts}
    return not known or bool(known & named)


@diagnosis
def drained_node(case: Case) -> Iterable[Candidate]:
    """sinfo -R: Slurm drained a node of this job, and the reason tells what is wrong with it.

    A node that was drained before the job began got no part of it.
    """
    for hit in case.hits("sinfo-reasons-rows"):
        row = _SINFO.match(hit.text)
        cause = cause_of(row.group("reason")) if row else ""
        if row and cause and _ours(case, row.group("nodes")):
            before = case.course.began_after(prefix.parse(row.group("since")).seconds)
            title = f"Slurm drained {row.group('nodes')}: {' '.join(row.group('reason').split())}"
            yield Candidate(cause, _BEFORE_THE_JOB if before else 0.84, title, [hit], hosts={row.group("nodes")})


# Words of the tests of dcgmi diag -> cause.
_TESTS: tuple[tuple[str, str], ...] = (
    (r"memory|memtest|page retirement|row remap", "gpu.ecc"),
    (r"nvlink|nvswitch|nvbandwidth", "gpu.nvlink"),
    (r"power|pulse|thermal", "gpu.thermal-power"),
    (r"pcie", "net.slow"),
)


def _cells_below(case: Case, hit: Hit) -> list[tuple[Hit, str]]:
    """The lines below a row of dcgmi diag that say what failed in the same test, and their words."""
    rows = [row for row in case.hits("dcgm-row-rows") if later(row, hit)]
    # From the right: what a collector puts before a line may have such strokes too.
    cells = [(row, row.text.rstrip().rsplit("|", 3)[1:]) for row in rows]
    below = itertools.takewhile(
        lambda cell: len(cell[1]) == 3 and cell[1][0].strip() in {"", "Warning", "Error"}, cells
    )
    return [(row, said[1:-1]) for row, (_, said, _) in below]


@diagnosis
def node_check(case: Case) -> Iterable[Candidate]:
    """A node health check failed and took the node away: the check's name and words tell what is wrong with the node.

    What dcgmi diag says below a test counts more than the test's name: any test fails where CUDA does not start.
    """
    # Judged with the date that stands beside.
    listed = {place(row) for row in case.hits("sinfo-reasons-rows") if _SINFO.match(row.text)}
    for hit in case.hits("node-check", "dcgm-row"):
        if place(hit) in listed:
            continue
        dcgm = hit.signature == "dcgm-row"
        text = hit.groups.get("check") or hit.text.strip(" |")
        detail = _cells_below(case, hit) if dcgm else []
        said = "".join(words for _, words in detail)  # cut in mid-word
        cause = topics.beneath(said) or cause_of(text, _TESTS if dcgm else REASONS)
        if cause:
            title = f"a node health check failed: {textwrap.shorten(f'{text} {said}', 120, placeholder=' ...')}"
            proof = [hit, *(row for row, _ in detail)]
            yield Candidate(cause, 0.64 if "| Warning" in hit.text else 0.84, title, proof, hosts=hosts_of([hit]))
            return
