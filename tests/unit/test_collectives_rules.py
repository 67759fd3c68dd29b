"""Localisation: from the ends of all ranks to the one that is to blame, or to an honest 'all of them'."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nccl_doctor.facts.collectives import Collectives, RankEnd, RankError, Where
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import engine
from nccl_doctor.rules.collective_failures import failures, lost_hosts
from nccl_doctor.rules.collective_rates import slow_hosts, wrong_results

GONE = "Connection closed by peer [10.0.0.2]:1234. This is typically caused by a remote worker hanging"


def end(rank: int, stage: str = "measure", **values: Any) -> RankEnd:
    iterations = values.pop("iterations", None)
    return RankEnd(rank, 100 + rank, Where(stage, "", 20.0, iterations), **values)


def error(kind: str, text: str = "", event: str = "error", **values: Any) -> RankError:
    return RankError(event, kind=kind, text=text, **values)


def world(*ends: RankEnd, events: tuple[dict[str, Any], ...] = ()) -> dict[str, Collectives]:
    """One rank a host: h0, h1, ..."""
    return {
        f"h{item.rank}": Collectives(
            f"h{item.rank}", "/opt/python", 1.0, (item,), events if item.rank == 0 else (), "gloo", "", len(ends),
            "h0", "10.0.0.1", 29500,
        )
        for item in ends
    }  # fmt: skip


FINISHED = {"finished": True, "exit": 0}
STUCK = {"exit": 70}


CASES = [
    (
        "collectives.rank-died",
        ("h1",),
        [
            end(0, exit=1, error=error("RuntimeError", GONE)),
            end(1, exit=-9, signal="SIGKILL"),
            end(2, exit=1, error=error("RuntimeError", GONE)),
        ],
    ),
    ("collectives.rank-died", ("h1",), [end(0, **STUCK), end(1, exit=137)]),
    (
        "collectives.rank-stopped",
        ("h2",),
        [end(0, **STUCK), end(1, **STUCK), end(2, exit=-9, killed="limit", state="T")],
    ),
    (
        "sw.torch-missing.import-fails",
        ("h1",),
        [
            end(0, "store", exit=1, error=error("ranks-missing", "1 of 2", missing=(1,))),
            end(1, "import", exit=1, error=error("torch-missing", "No module named torch")),
        ],
    ),
    (
        "net.port-in-use.store",
        ("h0",),
        [
            end(0, "store", exit=1, error=error("port-in-use", "EADDRINUSE")),
            end(1, "store", exit=1, error=error("store", "timed out")),
        ],
    ),
    (
        "collectives.stuck.store",
        ("h1",),
        [
            end(0, "store", exit=1, error=error("ranks-missing", "1 of 2 ranks", missing=(1,))),
            end(1, "store", exit=1, error=error("store", "timed out after 20 s")),
        ],
    ),
    (
        "collectives.stuck.process-group",
        ("h1",),
        [
            end(0, "first-collective", **STUCK),
            end(1, "process-group", exit=1, error=error("RuntimeError", "connect timed out")),
        ],
    ),
    (
        "collectives.stuck.first-collective",
        ("h0", "h1"),
        [end(0, "first-collective", **STUCK), end(1, "first-collective", **STUCK)],
    ),
    (
        "collectives.stuck.measure",
        ("h1",),
        [end(0, iterations=12, **STUCK), end(1, iterations=3, **STUCK), end(2, iterations=12, **STUCK)],
    ),
    (
        "collectives.failed",
        ("h1",),
        [
            end(0, exit=1, error=error("RuntimeError", GONE)),
            end(1, exit=1, error=error("RuntimeError", "CUDA error: an illegal memory access")),
        ],
    ),
    (
        "collectives.wrong-result",
        ("h0",),
        [
            end(0, "first-collective", exit=1, error=error("wrong-result", "the sum came out as 7.0")),
            end(1, "first-collective", **STUCK),
        ],
    ),
]


@pytest.mark.parametrize(
    ("id", "hosts", "ends"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)]
)
def test_the_root_is_named_and_only_it(id: str, hosts: tuple[str, ...], ends: list[RankEnd]) -> None:
    found = list(failures(world(*ends)))
    assert [item.id for item in found] == [id]
    assert found[0].hosts == hosts
    assert playbooks.for_finding(id)


@pytest.mark.parametrize(("text", "quoted"), [("", "torch cannot be imported"), ("\n  \nbad ELF", "bad ELF")])
def test_an_error_without_words_in_its_first_line_is_told_all_the_same(text: str, quoted: str) -> None:
    waits = end(1, exit=1, error=error("RuntimeError", "\nsome trouble"))
    (found,) = failures(world(end(0, "import", exit=1, error=error("torch-missing", text)), waits))
    assert found.evidence[0].text == quoted
    (died,) = failures(world(end(0, exit=-9, signal="SIGKILL"), waits))
    assert [proof.text for proof in died.evidence if proof.source == "other ranks"] == ["some trouble"]


def test_ranks_of_one_host_that_died_alike_are_one_finding() -> None:
    stages = {1: "measure", 2: "measure", 3: "gemm"}
    killed = [end(rank, stage, exit=-9, signal="SIGKILL") for rank, stage in stages.items()]
    facts = world(end(0, **STUCK), *killed, end(4, exit=-11, signal="SIGSEGV"))
    here = msgspec.structs.replace(facts["h1"], ranks=tuple(killed))
    found = list(failures({"h0": facts["h0"], "h1": here, "h4": facts["h4"]}))
    assert [item.title for item in found] == [
        "ranks 1, 2, 3 on h1 were killed by SIGKILL in gemm and measure",
        "rank 4 on h4 was killed by SIGSEGV in measure",
    ]
    assert [place.rank for place in found[0].places] == [1, 2, 3] and len(found[0].evidence) == 4


def test_a_run_that_ended_well_has_no_findings() -> None:
    assert list(failures(world(end(0, "end", **FINISHED), end(1, "end", **FINISHED)))) == []


def test_a_lost_host_is_the_root() -> None:
    found = list(failures(world(end(0, **STUCK)), {"h1": "connection lost: the stream ended"}))
    assert [(item.id, item.hosts) for item in found] == [("collectives.host-lost", ("h1",))]


@pytest.mark.parametrize(
    ("outcome", "detail", "lost"),
    [
        (Outcome.FAILED, "connection lost: the stream ended", True),
        (Outcome.FAILED, "no Python with torch", False),
        (Outcome.TIMED_OUT, "no answer: the agent has fallen silent", True),
        (Outcome.TIMED_OUT, "stopped by the run's deadline", False),  # ours: no fault of the host
    ],
)
def test_who_was_stopped_by_our_deadline_is_not_lost(outcome: Outcome, detail: str, lost: bool) -> None:
    assert lost_hosts({"h1": ProbeResult(outcome, None, detail)}) == ({"h1": detail} if lost else {})


def size(wrong: list[int], collective: str = "allreduce") -> dict[str, Any]:
    times = [1.0] * len(wrong)
    return {"event": "size", "collective": collective, "size": 1024, "rank_means_us": times, "wrong": wrong}


def test_who_waits_for_a_host_that_fell_silent_is_not_to_blame() -> None:
    facts = world(*(end(rank, "store", **STUCK) for rank in range(4)))
    assert list(failures(facts))
    del facts["h1"]
    assert list(failures(facts)) == []
    (gap,) = short_run(bundle(**{name: ok(fact) for name, fact in facts.items()})).unknown
    assert gap.hosts == ("h0", "h2", "h3") and "nothing was heard of rank 1," in gap.why
    died = world(end(0, **STUCK), end(1, **STUCK), end(2, exit=-9, signal="SIGKILL"))
    del died["h1"]
    assert [(item.id, item.hosts) for item in failures(died)] == [("collectives.rank-died", ("h2",))]


def test_wrong_elements_name_their_ranks() -> None:
    ends = (end(0, "end", **FINISHED), end(1, "end", **FINISHED))
    (found,) = wrong_results(world(*ends, events=(size([0, 0]), size([0, 5]), size([0, 2]))))
    assert found.hosts == ("h1",) and [place.rank for place in found.places] == [1]
    assert not list(wrong_results(world(*ends, events=(size([0, 0]),))))


@pytest.mark.parametrize(("wrong", "hosts"), [(3, ("h1",)), (0, ()), (None, ())])
def test_wrong_matrix_products_are_wrong_results(wrong: int | None, hosts: tuple[str, ...]) -> None:
    ranks = [{"median_s": 1.0, "n": 5, "wrong": count} for count in (0, wrong)]
    facts = world(
        end(0, "end", **FINISHED), end(1, "end", **FINISHED), events=({"event": "gemm", "edge": 8, "ranks": ranks},)
    )
    assert [(item.severity, item.hosts) for item in wrong_results(facts)] == [(Severity.FAIL, hosts)] * bool(hosts)


def link(first: int, second: int, gbs: float) -> dict[str, Any]:
    return {"event": "link", "first": first, "second": second, "size": 1 << 20, "seconds": (1 << 20) / gbs / 1e9}


def links(slow: set[int], count: int = 4) -> dict[str, Collectives]:
    ends = [end(rank, "end", **FINISHED) for rank in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return world(*ends, events=tuple(link(a, b, 0.1 if {a, b} & slow else 1.0) for a, b in pairs))


def test_the_slow_host_is_named_and_a_clean_fleet_is_not() -> None:
    (found,) = slow_hosts(links({2}))
    assert found.id == "collectives.slow-host" and found.hosts == ("h2",) and len(found.evidence) == 3
    assert not list(slow_hosts(links(set())))


def test_a_slow_host_that_is_lost_afterwards_makes_no_nameless_one() -> None:
    """A finding of no host is held against all of them."""
    facts = links({2})
    del facts["h2"]
    assert not list(slow_hosts(facts))


def test_rates_of_a_busy_machine_blame_nobody() -> None:
    """They scatter: the lowest is held against the middle of the others, as the title tells, and not the fastest."""
    rates = {(0, 1): 0.7, (0, 2): 0.42, (0, 3): 0.45, (1, 2): 0.49, (1, 3): 0.26, (2, 3): 0.75}
    ends = [end(rank, finished=True) for rank in range(4)]
    assert not list(slow_hosts(world(*ends, events=tuple(link(a, b, gbs) for (a, b), gbs in rates.items()))))


def test_a_pair_that_is_slow_alone_is_named() -> None:
    ends = [end(rank, "end", **FINISHED) for rank in range(3)]
    facts = world(*ends, events=(link(0, 1, 1.0), link(0, 2, 1.1), link(1, 2, 0.1)))
    (found,) = slow_hosts(facts)
    assert found.id == "collectives.slow-pair" and found.hosts == ("h1", "h2")
    assert "only the exchange between them" in found.title and "1.10 GB/s" in found.title


def test_a_pair_that_a_busy_machine_slowed_is_no_finding() -> None:
    ends = [end(rank, "end", **FINISHED) for rank in range(3)]
    assert not list(slow_hosts(world(*ends, events=(link(0, 1, 1.0), link(0, 2, 1.1), link(1, 2, 0.35)))))
    assert not list(slow_hosts(world(*ends, events=(link(0, 1, 0.51), link(0, 2, 0.17), link(1, 2, 0.16)))))


def test_a_python_that_ends_before_our_first_line_shows_its_last_one() -> None:
    output = "Traceback\n  File 'random.py', line 3\n    import tempfile\nImportError: cannot import name 'Random'"
    (found,) = failures(world(end(0, "end", **FINISHED), end(1, "spawn", exit=1, output=output)))
    assert found.id == "collectives.stuck.spawn" and "ended while" in found.title
    assert [item.text for item in found.evidence[1:3]] == [
        "ImportError: cannot import name 'Random'", "  File 'random.py', line 3",
    ]  # fmt: skip
    assert found.fixes[0].host == "h1" and "import tempfile, torch" in found.fixes[0].command


def interface(rank: int, gbps: float, physical: bool = True) -> dict[str, Any]:
    speed = {"speed_mbps": int(gbps * 1000), "physical": physical}
    return {"event": "path", "rank": rank, "connections": [], "interfaces": {"eth0": speed}}


@pytest.mark.parametrize(
    ("gbs", "events", "before_gbs", "words"),
    [
        (0.2, (interface(0, 10),), 0.0, "less than 25 % of 10 Gb/s"),
        (0.2, (interface(0, 400),), 0.0, "less than 25 % of 10 Gb/s"),  # one stream does not fill 400 Gb/s
        (0.4, (interface(0, 400),), 0.0, ""),
        (0.2, (interface(0, 1),), 0.0, ""),  # more than the line claims
        (0.02, (interface(0, 0.1),), 0.0, "less than 25 % of 1 Gb/s"),  # a line that fell to 100 Mb/s
        (0.2, (interface(0, 10, physical=False),), 0.0, ""),  # a virtual interface's claim means nothing
        (0.02, (), 0.0, "less than 25 % of 1 Gb/s"),
        (0.2, (), 0.4, ""),
        (0.2, (), 0.6, "the baseline has 0.60 GB/s"),
    ],
)
def test_two_hosts_are_a_slow_pair_and_neither_is_blamed(
    gbs: float, events: tuple[dict[str, Any], ...], before_gbs: float, words: str
) -> None:
    ends = (end(0, "end", **FINISHED), end(1, "end", **FINISHED))
    found = list(slow_hosts(world(*ends, events=(link(0, 1, gbs), *events)), before_gbs))
    assert bool(found) == bool(words)
    for item in found:
        assert item.id == "collectives.slow-pair" and item.hosts == ("h0", "h1") and words in item.title
        assert "two hosts cannot tell which" in item.title and "h0,h1,THIRD_HOST" in item.fixes[0].command
        assert playbooks.for_finding(item.id)


def bundle(**probes: ProbeResult) -> Bundle:
    hosts = tuple(
        HostFacts(name, Reach(ReachOutcome.OK), {"collectives": found}) for name, found in sorted(probes.items())
    )
    return Bundle(1, "test", "2026-01-01T00:00:00Z", Plan(stages=("collectives",)), hosts)


def short_run(found: Bundle) -> engine.RuleResult:
    (result,) = (result for result in engine.run(found) if result.rule == "collectives.short_run")
    return result


def ok(fact: Collectives) -> ProbeResult:
    return ProbeResult(Outcome.OK, msgspec.to_builtins(fact))


WELL = (end(0, "end", **FINISHED), end(1, "end", **FINISHED))
BOTH = (size([0, 0]), size([0, 0], "allgather"), link(0, 1, 1.0))


@pytest.mark.parametrize(
    ("events", "changes", "why"),
    [
        (BOTH, {}, ""),
        ((), {}, "no allreduce and no allgather was measured"),
        (BOTH[:1], {}, "no allgather was measured"),
        (BOTH[:2], {}, "no pair of hosts was timed"),
        (BOTH[:2], {"host": "localhost"}, "no pair of hosts was timed"),  # what two machines may both call themselves
        (({**BOTH[0], "wrong": None}, BOTH[1]), {}, "what came out was not compared on all ranks"),
        (({**BOTH[0], "wrong": [0]}, BOTH[1]), {}, "what came out was not compared on all ranks"),
        ((size([0]), size([0], "allgather")), {}, "not all ranks took part in each collective"),
        (BOTH, {"world": 0}, "nobody told how many ranks there are"),
        (BOTH, {"world": 3}, "nothing was heard of rank 2, which the others waited for"),
        (({**BOTH[0], "rank_means_us": [1.0, 0.0]}, BOTH[1]), {}, "unreadable"),
        (({**BOTH[0], "collective": "allsum"}, BOTH[1]), {}, "unreadable: 'allsum' is no collective"),
    ],
)
def test_a_run_without_an_error_has_passed_only_with_what_it_measured(
    events: tuple[dict[str, Any], ...], changes: dict[str, Any], why: str
) -> None:
    facts = {name: msgspec.structs.replace(fact, **changes) for name, fact in world(*WELL, events=events).items()}
    result = short_run(bundle(**{name: ok(fact) for name, fact in facts.items()}))
    assert result.passed == (() if why else ("h0", "h1"))
    assert [gap.why for gap in result.unknown if gap.why.startswith(why)] or not result.unknown
    assert bool(result.unknown) == bool(why)
    assert all(item.severity is Severity.INFO for item in result.findings)


def test_one_rank_alone_is_not_told_to_have_communicated() -> None:
    alone = tuple({**event, "rank_means_us": [1.0], "wrong": [0]} for event in BOTH)
    facts = world(end(0, "end", **FINISHED), events=alone)
    (note,) = short_run(bundle(h0=ok(facts["h0"]))).findings
    assert "nobody" in note.title and "work" not in note.title


def test_a_host_without_torch_is_unknown_never_passed() -> None:
    facts = world(*WELL, events=BOTH)
    absent = ProbeResult(Outcome.TOOL_MISSING, None, "no torch in /usr/bin/python3; name the Python with --python")
    result = short_run(bundle(h0=ok(facts["h0"]), h1=ok(facts["h1"]), h2=absent))
    assert result.passed == ("h0", "h1") and [item.id for item in result.findings] in ([], ["collectives.measured"])
    (unknown,) = result.unknown
    assert unknown.hosts == ("h2",) and "/usr/bin/python3" in unknown.why and "--python" in unknown.why


def test_ranks_of_another_python_than_the_examined_one_are_told() -> None:
    size = {"event": "size", "collective": "allreduce", "size": 4, "rank_means_us": [1.0, 1.0], "wrong": [0, 0]}
    facts = world(end(0, "end", **FINISHED), end(1, "end", **FINISHED), events=(size,))
    for examined, told in (("/opt/python", False), ("/usr/bin/python3", True)):
        python = {"version": "3.11", "executable": examined}
        software = ProbeResult(Outcome.OK, {"python": python, "distributions": {}, "nccl": [], "driver": {}})
        found = bundle(**{name: ok(fact) for name, fact in facts.items()})
        hosts = tuple(
            msgspec.structs.replace(host, probes={**host.probes, "software": software}) for host in found.hosts
        )
        (note,) = short_run(msgspec.structs.replace(found, hosts=hosts)).findings
        assert ("with /opt/python, not with the Python that was examined" in note.title) == told


def test_nothing_measured_is_unknown_everywhere() -> None:
    gap = ProbeResult(Outcome.NOT_RUN, None, "no host has a Python with torch")
    result = short_run(bundle(h0=gap, h1=gap))
    assert not result.passed and {host for item in result.unknown for host in item.hosts} == {"h0", "h1"}


def test_a_cause_in_the_output_is_named_beside_where_it_stuck() -> None:
    said = (
        "h1:101:101 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>\n"
        "RuntimeError: CUDA error: out of memory\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of"
        " which 1.02 GiB is free.\n"
    )
    ends = [
        end(0, exit=1, error=error("RuntimeError", GONE)),
        end(1, exit=1, output=said, error=error("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB")),
    ]
    first, cause = failures(world(*ends))
    assert first.id == "collectives.failed" and cause.id.startswith("gpu.oom")
    assert cause.hosts == ("h1",)
