"""Placement, ceilings, verdicts and formats: from facts and results to what is told."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from nccl_doctor.agent.collective.ranks import Identity
from nccl_doctor.bench import expected, fleet, in_job
from nccl_doctor.bench.ceiling import Ceiling, find_ceiling
from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.model import BenchPlan, Link, Measurement, RankRecord, Results, Skip, measurement
from nccl_doctor.bench.nccl_log import NcclPath
from nccl_doctor.bench.outcome import Asked, BaselineError, Outcome, conclude, encode, misfit, read
from nccl_doctor.bench.path import Path, path_findings
from nccl_doctor.bench.statistics import Spread
from nccl_doctor.bench.statistics import spread as spread_of
from nccl_doctor.bench.verdict import Ground, Verdict, verdict_findings, verdicts
from nccl_doctor.bench.world import CannotRun, HcaPort, Prepared, Share, Torch, World, place
from nccl_doctor.facts.collectives import Collectives, RankEnd, RankError, Where
from nccl_doctor.findings.model import Evidence, Severity, finding
from nccl_doctor.report import bench_plot
from nccl_doctor.report.bench_console import head
from nccl_doctor.report.bench_formats import csv_text, fixed, nccl_tests
from nccl_doctor.report.bench_plot import html, svg

CUDA = Torch("2.8.0+cu128", "12.8")
CPU = Torch("2.13.0+cpu")


def host(name: str = "h", gpus: int = 0, torch: Torch = CPU, **values: Any) -> Prepared:
    defaults: dict[str, Any] = {
        "addresses": {"10.0.0.1": "eth0", "127.0.0.1": "lo"}, "name_addresses": ("10.0.0.1",), "port": 29500,
    }  # fmt: skip
    return Prepared(name, "/usr/bin/python3", torch, ("NVIDIA H100 80GB HBM3",) * gpus, **{**defaults, **values})


PLAN = BenchPlan(("allreduce",), (1 << 33,))


# ---- placement ----


def test_ranks_that_a_scheduler_dealt_out_in_turns_belong_to_two_hosts() -> None:
    """`srun -m cyclic`: a, b, a, b. Nothing of a rank is lost, and two hosts are two."""
    watch = in_job._Watch(Identity(0, 4, 0, 2, "10.0.0.1", 29500, "srun"))
    records = [{"rank": rank, "host": "ab"[rank % 2], "local_rank": rank // 2} for rank in range(4)]
    watch.take({"event": "world", "world": 4, "launcher": "srun", "ranks": records})
    found = in_job._conclude(watch, PLAN, ("gloo", "no GPU"), Asked("bench"), 1.0, ())
    assert found.world.per_host == {"a": 2, "b": 2}
    assert sorted((tail.rank, tail.host) for tail in found.ranks) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    assert "4 ranks on 2 hosts" in next(head(found.world, found.results)).plain
    assert misfit(found.world, found.results, PLAN, found) == ""


def test_ranks_are_placed_master_first() -> None:
    world = place({"a": host(gpus=8, torch=CUDA), "b": host(gpus=4, torch=CUDA)}, PLAN, master="b")
    assert world.shares == (Share("b", 0, 4, "/usr/bin/python3"), Share("a", 4, 8, "/usr/bin/python3"))
    assert (world.backend, world.size, world.master_addr) == ("nccl", 12, "10.0.0.1")


def test_the_backend_is_chosen_with_its_reason() -> None:
    def backend(*hosts: Prepared, wanted: str = "auto") -> tuple[str, str]:
        world = place({str(n): item for n, item in enumerate(hosts)}, msgspec.structs.replace(PLAN, backend=wanted))
        return world.backend, world.backend_why

    assert backend(host()) == ("gloo", "no host has a GPU")
    assert backend(host(gpus=1, torch=CUDA), host()) == ("gloo", "no GPU on 1")
    assert backend(host(gpus=1, torch=CPU)) == ("gloo", "a CPU build of torch on 0")
    assert backend(host(gpus=1, torch=CUDA), wanted="gloo") == ("gloo", "asked for")
    with pytest.raises(CannotRun, match="no GPU on 0"):
        backend(host(), wanted="nccl")


def test_the_masters_address_is_one_that_others_can_use() -> None:
    two = {"b": host()}

    def address(master: Prepared, reached: str = "") -> str:
        return place({"a": master, **two}, PLAN, "a", {"a": reached}).master_addr

    assert address(host()) == "10.0.0.1"
    assert address(host(name_addresses=("127.0.1.1",), route_source="10.0.0.7")) == "10.0.0.7"
    assert address(host(name_addresses=("10.9.9.9",), route_source=""), "10.0.0.8") == "10.0.0.8"  # stale name
    with pytest.raises(CannotRun, match="no address"):
        address(host(name_addresses=("127.0.1.1",), route_source=""), "127.0.0.1")
    assert place({"a": host(name_addresses=("127.0.1.1",))}, PLAN).master_addr == "127.0.0.1"


def test_a_hostfiles_slots_are_ranks_unless_the_options_say_otherwise() -> None:
    hosts = {"a": host(), "b": host(), "c": host()}

    def ranks(plan: BenchPlan = PLAN, **slots: int) -> tuple[list[int], str]:
        world = place(hosts, plan, slots=slots)
        return [share.ranks for share in world.shares], world.ranks_why

    assert ranks() == ([1, 1, 1], "one a host")
    assert ranks(a=2, b=4, c=2) == ([2, 4, 2], "slots of the host list")
    assert ranks(b=4) == ([1, 4, 1], "slots of the host list, else one a host")
    assert ranks(msgspec.structs.replace(PLAN, ranks_per_host=3), a=2, b=4) == ([3, 3, 3], "asked for")
    with pytest.raises(CannotRun, match=r"has 2 GPU.*8 ranks were asked for; --gpus-per-host goes before"):
        place({"a": host(gpus=2, torch=CUDA)}, PLAN, slots={"a": 8})


def test_too_many_ranks_and_a_taken_port_are_refused() -> None:
    with pytest.raises(CannotRun, match="has 2 GPU"):
        place({"a": host(gpus=2, torch=CUDA)}, msgspec.structs.replace(PLAN, ranks_per_host=4))
    with pytest.raises(CannotRun, match=r"1000 ranks need 125 GiB or more, .* and 16 GiB are free on a"):
        place({"a": host(memory=16 << 30)}, msgspec.structs.replace(PLAN, ranks_per_host=1000))
    with pytest.raises(CannotRun, match="29500 is already in use on a"):
        place({"a": host(port_free=False)}, PLAN)


def test_busy_gpus_are_not_disturbed() -> None:
    with pytest.raises(fleet.Refused, match=r"(?s)other processes use the GPUs.*b: python 4711 on GPU 0"):
        fleet._not_busy({"a": host("a"), "b": host("b", busy=("python 4711 on GPU 0",))})
    fleet._not_busy({"a": host("a"), "b": host("b", busy_unknown="no nvidia-smi, and no GPU")})
    with pytest.raises(fleet.Refused, match=r"not known \(--allow-busy .*\n  a: nvidia-smi .*: exit status 17"):
        fleet._not_busy({"a": host("a", gpus=1, busy_unknown="nvidia-smi --query-compute-apps=pid: exit status 17")})


def test_a_host_without_torch_says_which_python_and_how_to_choose_another() -> None:
    trouble = host(torch=Torch()).torch_trouble
    assert "/usr/bin/python3" in trouble and "--python" in trouble
    assert "--python" in host(torch=Torch(error="/no/python: not found")).torch_trouble


# ---- results and verdicts ----


def spread(median: float, cv: float = 0.01) -> Spread:
    return Spread(50, median, median, median, median, median * 1.1, median * 1.2, cv)


def measured(
    busbw: float,
    size: int = 1 << 33,
    collective: str = "allreduce",
    mode: str = "in",
    cv: float = 0.01,
    wrong: int | None = 0,
) -> Measurement:
    time_us = size / busbw / 1e3
    return Measurement(
        collective, mode, size, size, size // 4, -1, time_us, busbw, busbw, spread(time_us, cv), 1, 0.004, wrong,
        (1,) if wrong else (), (time_us, time_us),
    )  # fmt: skip


def nccl_path(**values: Any) -> NcclPath:
    defaults: dict[str, Any] = {
        "versions": ("2.28.9",), "networks": ("IB",), "transports": {"P2P/CUMEM": 16}, "net_edges": 0, "gdr_edges": 0,
        "pxn_edges": 0, "channels": 16, "algorithms": ("Ring",), "hcas": {}, "devices": {}, "interfaces": {},
        "plugins": (), "env": {}, "incomplete": (),
    }  # fmt: skip
    return NcclPath(**{**defaults, **values})


PROVED = Path("nccl", "P2P/CUMEM", True, nccl=nccl_path())
ONE_HOST = World("nccl", "asked for", (Share("a", 0, 8),), "a", "127.0.0.1", 1)
GLOO = World("gloo", "no host has a GPU", (Share("a", 0, 1), Share("b", 1, 1)), "a", "10.0.0.1", 1)


def results(*measurements: Measurement, device: str = "NVIDIA H100 80GB HBM3", world: int = 8) -> Results:
    records = tuple(RankRecord(rank, "a", device_name=device, pid=100 + rank) for rank in range(world))
    return Results(world, ranks=records, measurements=measurements)


def judge(*measurements: Measurement, world: World = ONE_HOST, path: Path = PROVED, **values: Any) -> Verdict:
    ceiling = values.pop("ceiling", None)
    prepared = values.pop("prepared", {"a": host(gpus=8, torch=CUDA, nvlinks=18, nvlink_gbs=26.5)})
    device = values.pop("device", "NVIDIA H100 80GB HBM3")
    found = results(*measurements, world=world.size, device=device)
    ground = Ground(found, world, path, ceiling, prepared, **values)
    return verdicts(ground, ("allreduce",))[0]


def test_published_numbers_judge_what_was_measured_on_such_a_machine() -> None:
    good = judge(measured(470.0))
    assert good.kind == "good" and "expected 476-480 GB/s" in good.text and "NVIDIA/nccl-tests" in good.text
    slow = judge(measured(300.0))
    assert slow.kind == "slow" and "37 % below" in slow.text
    assert judge(measured(300.0, mode="copy"), measured(470.0)).kind == "good"  # --both: a copy's time judges nobody
    assert judge(measured(470.0, mode="copy"), measured(300.0)).kind == "slow"
    assert judge(measured(300.0, cv=0.4)).kind == "cannot-judge"
    once = judge(msgspec.structs.replace(measured(470.0), spread=spread_of([18.0])))
    assert once.kind == "cannot-judge" and "cannot tell: 1 time only" in once.text
    assert judge(measured(470.0), device="NVIDIA GH100").kind == "cannot-judge"  # another product
    net = {"transports": {"NET/IB": 16, "P2P/CUMEM": 16}, "hcas": {"a": ("mlx5_0:1/IB",)}}
    ib = Path("nccl", "", True, nccl=nccl_path(**net))
    for ranks, published in ((8, True), (4, False)):  # nobody publishes numbers of uneven hosts
        both = World("nccl", "", (Share("a", 0, 8), Share("b", 8, ranks)), "a", "10.0.0.1", 1)
        assert ("expected" in judge(measured(400.0), world=both, path=ib).text) is published
    without_nvlink = {"a": host(gpus=8, torch=CUDA)}
    assert judge(measured(30.0), prepared=without_nvlink).kind == "cannot-judge"  # peer access over PCIe


def test_never_good_without_a_proved_path() -> None:
    unproved = Path("nccl", "?", False, ("no complete init in the NCCL log of rank 3",))
    for values in ({}, {"min_busbw": 100.0}, {"baseline": (measured(470.0),)}):
        verdict = judge(measured(470.0), path=unproved, **values)
        assert verdict.kind == "cannot-judge" and "rank 3" in verdict.text
    assert judge(measured(10.0), path=unproved, min_busbw=100.0).kind == "slow"


def test_the_share_of_the_ceiling_stands_behind_what_was_measured() -> None:
    """Not behind what --min-busbw asks for, or what the baseline had."""
    share = "10 GB/s at 8G, 20 % of 50 GB/s (four NICs); "
    for values in (
        {"min_busbw": 40.0},
        {"min_busbw": 5.0},
        {"baseline": (measured(20.0),)},
        {"baseline": (measured(10.0),)},
    ):
        assert judge(measured(10.0), ceiling=Ceiling(50.0, "four NICs", True), **values).text.startswith(share)


def test_a_run_that_did_not_come_to_the_largest_size_is_not_called_slow() -> None:
    """It was left out, a rank died before it, or the run was interrupted."""
    verdict = judge(measured(10.0), min_busbw=100.0, largest=64 << 30)
    assert verdict.kind == "cannot-judge" and "64G was not measured" in verdict.text


def test_products_of_matrices_have_no_bandwidth_to_judge() -> None:
    both = outcome(plan=BenchPlan(("allreduce", "gemm"), (1 << 30,)))
    assert [item.collective for item in both.verdicts] == ["allreduce"]


def test_wrong_results_outrank_everything() -> None:
    assert judge(measured(470.0, wrong=3), min_busbw=1.0).kind == "wrong"


def test_the_baseline_beats_the_table_and_knows_its_noise() -> None:
    assert judge(measured(300.0), baseline=(measured(301.0),)).kind == "good"
    slow = judge(measured(410.0), baseline=(measured(470.0),))
    assert slow.kind == "slow" and re.search(r"slower by 13 % \+- \d+ % than the baseline at 8G", slow.text)
    noisy = judge(measured(410.0, cv=0.6), baseline=(measured(470.0, cv=0.3),))
    assert noisy.kind == "cannot-judge" and "cannot tell: cv 60 %" in noisy.text
    sizes = [measured(470.0, 1 << 33)] + [measured(400.0, 1 << number, cv=0.6) for number in (20, 21, 22)]
    many = judge(*sizes, baseline=tuple(sizes))
    assert many.kind == "cannot-judge" and many.text.endswith(" at 8G; cannot tell at 3 of 4 sizes"), many.text
    other = judge(measured(410.0), baseline=(measured(470.0, size=1 << 20),))
    assert other.kind == "cannot-judge" and "none of these sizes" in other.text


@pytest.mark.parametrize(
    ("slower", "kind"),
    [
        ({3: 0.92}, "good"),  # beyond its own margin of 6 %, as one of twenty is by chance
        ({3: 0.8}, "slow"),
        ({20: 0.92}, "slow"),  # the largest, which is the one that is judged
        (dict.fromkeys(range(3, 9), 0.92), "slow"),
    ],
)
def test_one_of_many_sizes_is_slower_by_chance(slower: dict[int, float], kind: str) -> None:
    sizes = {number: 1 << (10 + number) for number in range(21)}
    now = [measured(100.0 * slower.get(number, 1.0), size, cv=0.15) for number, size in sizes.items()]
    found = judge(*now, baseline=tuple(measured(100.0, size, cv=0.15) for size in sizes.values()))
    assert found.kind == kind, found.text


def test_gloo_one_rank_and_unknown_machines_cannot_be_judged() -> None:
    gloo = Path("gloo", "eth0", True)
    assert judge(measured(1.0), world=GLOO, path=gloo).kind == "cannot-judge"
    assert judge(measured(1.0), world=GLOO, path=gloo, min_busbw=0.5).kind == "good"
    alone = World("gloo", "", (Share("a", 0, 1),), "a", "127.0.0.1", 1)
    assert "one rank" in judge(measured(1.0), world=alone, path=gloo, min_busbw=0.1).text
    seven = World("nccl", "", (Share("a", 0, 7),), "a", "127.0.0.1", 1)
    assert judge(measured(400.0), world=seven).kind == "cannot-judge"


def test_every_published_number_has_a_source_and_a_date() -> None:
    table = expected.table()
    assert len(table) >= 25
    for item in table:
        assert item.source and re.fullmatch(r"20\d\d-\d\d", item.read)
        assert 0 < item.value < 2000 and item.size > 0
    assert [item.value for item in expected.find("NVIDIA A100-SXM4", "nvlink", 1, 8, "allreduce", 16 << 30)] == [234.9]


def test_the_binding_link_is_named() -> None:
    rails = tuple(HcaPort(f"mlx5_{n}", 1, "4: ACTIVE", 400.0) for n in range(8))
    full = host(gpus=8, torch=CUDA, hcas=rails, nvlinks=18, nvlink_gbs=26.562)
    two = World("nccl", "", (Share("a", 0, 8), Share("b", 8, 8)), "a", "10.0.0.1", 1)
    ib = Path("nccl", "", True, nccl=nccl_path(transports={"NET/IB": 16, "P2P/CUMEM": 16}))
    found = find_ceiling(two, ib, Results(16), {"a": full, "b": full})
    assert found is not None and found.gbs == pytest.approx(400.0) and "8 x 400 Gb/s = 400 GB/s per host" in found.words
    unknown = msgspec.structs.replace(full, nvlinks=None)  # may be what binds
    assert find_ceiling(two, ib, Results(16), {"a": full, "b": unknown}) is None
    inside = find_ceiling(ONE_HOST, PROVED, Results(8), {"a": full})
    assert inside is not None and inside.gbs == pytest.approx(478.1, abs=0.1) and "18 NVLinks" in inside.words
    sockets = Path("nccl", "", True, nccl=nccl_path(transports={"NET/Socket": 16}))
    assert find_ceiling(two, sockets, Results(16), {"a": full, "b": full}) is None
    pcie = host(gpus=2, torch=CUDA, nvlinks=0, pcie=("4, 16", "[N/A], [N/A]", "99, 16", "", "3, 16"))
    silent = msgspec.structs.replace(pcie, nvlinks=None)  # nvidia-smi does not say whether it has NVLinks
    assert find_ceiling(ONE_HOST, PROVED, Results(8), {"a": silent}) is None
    slot = find_ceiling(ONE_HOST, PROVED, Results(8), {"a": pcie})
    assert slot is not None and slot.gbs == pytest.approx(15.76) and "PCIe 3.0 x16" in slot.words
    pairs = Results(2, links=(Link(0, 1, 1 << 23, 1.25),), ranks=(RankRecord(0, "a"), RankRecord(1, "b")))
    measured_pairs = find_ceiling(GLOO, Path("gloo", "", True), pairs, {})
    assert measured_pairs == Ceiling(1.25, "what a <-> b moved", True)


def test_a_path_worse_than_the_hardware_is_a_finding() -> None:
    rails = tuple(HcaPort(f"mlx5_{n}", 1, "4: ACTIVE", 400.0) for n in range(8))
    prepared = {name: host(gpus=8, torch=CUDA, hcas=rails, nvlinks=18, nvlink_gbs=26.0) for name in ("a", "b")}
    world = World("nccl", "", (Share("a", 0, 8), Share("b", 8, 8)), "a", "10.0.0.1", 1)

    def ids(**values: Any) -> list[str]:
        path = Path("nccl", "", True, nccl=nccl_path(**values))
        return [item.id for item in path_findings(path, world, prepared)]

    assert ids(networks=("Socket",), transports={"NET/Socket": 4}, env={"NCCL_IB_DISABLE": "1"}) == [
        "net.slow.socket-despite-ib"
    ]
    good = {"transports": {"NET/IB": 16, "P2P/CUMEM": 8}, "net_edges": 16, "gdr_edges": 16, "devices": {"a": 8, "b": 8}}
    assert ids(**good) == ids(**{**good, "devices": {}}) == []  # no connection told its device
    assert (
        ids(**{**good, "transports": {"NET/OFI": 16}, "devices": {"a": 1, "b": 1}}) == []
    )  # not NCCL's own InfiniBand
    assert ids(**{**good, "gdr_edges": 4}) == ["ib.gdr.not-used"]
    assert ids(**{**good, "devices": {"a": 1, "b": 8}}) == ["net.slow.few-rails"]
    assert ids(**{**good, "transports": {"NET/IB": 16, "SHM/direct": 8}}) == ["gpu.p2p.shm-despite-nvlink"]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    event = {
        "collective": "allreduce", "mode": "in", "size": 8_000_000, "asked": 8_000_000, "count": 2_000_000, "root": -1,
        "rank_means_us": [100.0, 300.0], "iteration_us": [100.0, 300.0], "wrong": [0, 2],
    }  # fmt: skip
    found = measurement(event, 2)
    assert found.time_us == 200.0 and found.algbw_gbs == pytest.approx(40.0) and found.busbw_gbs == pytest.approx(40.0)
    assert (found.slowest_rank, found.slowest_behind, found.wrong, found.wrong_ranks) == (1, 0.5, 2, (1,))
    assert measurement({**event, "collective": "allgather"}, 4).busbw_gbs == pytest.approx(30.0)


# ---- what is printed and kept ----


def outcome(**values: Any) -> Outcome:
    ends = tuple(RankEnd(rank, finished=True, exit=0, where=Where("end")) for rank in range(8))
    defaults: dict[str, Any] = {
        "plan": BenchPlan(("allreduce", "alltoall"), (1 << 20, 1 << 30)),
        "world": ONE_HOST,
        "results": msgspec.structs.replace(
            results(measured(40.0, 1 << 20), measured(460.0, 1 << 30), measured(470.0, 1 << 30, mode="copy"),
                    measured(300.0, 1 << 20, "alltoall", "out", wrong=2)),
            skips=(Skip("alltoall", 1 << 30, "needs <script> of memory\x1b[2J", "out"),),
        ),
        "facts": {"a": Collectives("a", ranks=ends)},
        "prepared": {},
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
    }  # fmt: skip
    return conclude(**{**defaults, **values})


def test_the_nccl_tests_table_is_what_scripts_parse() -> None:
    text = nccl_tests(outcome())
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(row) == 13 for row in rows)
    assert rows[1][:5] == ["1073741824", "268435456", "float", "sum", "-1"]
    assert [rows[1][7], rows[1][11]] == ["470.00", "460.00"]  # out of place first
    assert rows[0][5:9] == ["N/A"] * 4 and rows[2][8] == "2"
    averages = [float(found) for found in re.findall(r"# Avg bus bandwidth    : ([0-9.]+)", text)]
    assert averages == pytest.approx([(40 + 460 + 470) / 3, 300.0], rel=1e-4)
    assert "# Out of bounds values : 0 OK" in text and "# Out of bounds values : 2 FAILED" in text
    assert "# Collective test starting: all_reduce_perf" in text


@pytest.mark.parametrize("measurements", [(), (measured(40.0, 1 << 20), measured(41.0, 1 << 21, wrong=None))])
def test_what_was_not_checked_is_not_ok_for_scripts(measurements: tuple[Measurement, ...]) -> None:
    text = nccl_tests(outcome(results=results(*measurements)))
    assert "# Out of bounds values : N/A" in text and " OK" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(1.234, "1.23"), (12345.678, "12345.7"), (1234567.8, "1234568"), (123456789.0, "1.2e+08")]
)
def test_numbers_fit_their_column(value: float, text: str) -> None:
    assert fixed(value, 7) == text


def test_csv_and_json_say_the_same() -> None:
    found = outcome()
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    document = json.loads(encode(found))
    assert document["schema"] == "nccl-doctor/bench/1"
    assert [float(row["busbw_gbs"]) for row in rows if row["busbw_gbs"]] == [
        item["busbw_gbs"] for item in document["results"]["measurements"]
    ]
    assert rows[-1]["skipped"].startswith("needs <script>") and "\x1b" not in rows[-1]["skipped"]


def test_a_saved_run_reads_back_and_other_files_are_refused(tmp_path: Any) -> None:
    found = outcome()
    (tmp_path / "run.json").write_bytes(encode(found))
    assert read(tmp_path / "run.json") == found
    (tmp_path / "bad.json").write_text('{"schema": 1}')
    for name in ("bad.json", "none.json"):
        with pytest.raises(BaselineError, match=name):
            read(tmp_path / name)
    assert misfit(found.world, found.results, found.plan, found) == ""
    assert "backend" in misfit(GLOO, found.results, found.plan, found)
    assert outcome(asked=Asked(baseline=found)).changes
    assert not outcome(asked=Asked(baseline=msgspec.structs.replace(found, world=GLOO))).changes


def test_plots_are_well_formed_and_carry_nothing_foreign() -> None:
    runs = [("this run", outcome()), ('<img src="x">', outcome())]
    tree = ElementTree.fromstring(svg(runs))
    assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= {
        "svg",
        "g",
        "rect",
        "line",
        "text",
        "polyline",
        "circle",
    }
    page = html(runs)
    assert "<script" not in page and "<img" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "&lt;img" in page


def test_the_page_of_a_run_has_a_table_for_each_collective_and_way() -> None:
    page = html([("this run", outcome())])
    assert "svg{max-width:100%" in page  # no wider than the text around it
    assert (
        page.count("<div class='wide'><table>") == 3 and ".wide{overflow-x:auto" in page
    )  # a narrow window cuts no column off
    tables = [
        (caption, re.findall(r"<tr><td>(\w+)", body))
        for caption, body in re.findall(r"<table><caption>(.*?)</caption>(.*?)</table>", page, re.S)
    ]
    assert tables == [("in place", ["1M", "1G"]), ("copy + in place", ["1G"]), ("out of place", ["1M"])]
    assert re.findall(r"<h2>(\w+)</h2><svg", page) == ["allreduce", "alltoall"]
    assert "? CANNOT JUDGE  allreduce: 460 GB/s at 1G; the path is not proved" in page
    assert "✗ WRONG  alltoall: 2 wrong elements" in page
    assert "<p>alltoall: not measured: 1G: needs &lt;script&gt; of memory" in page and "did not complete" not in page
    assert "<p>the run did not complete: what was measured" in html([("this run", outcome(facts={}))])


def test_a_plot_of_a_run_that_measured_nothing_says_so() -> None:
    runs = [("this run", outcome(results=results()))]
    drawn = ElementTree.fromstring(svg(runs))
    assert [text.text for text in drawn.iter() if text.tag.endswith("}text")] == ["nothing was measured"]
    assert int(drawn.attrib["height"]) > 0 and "<h1>nothing was measured</h1>" in html(runs)


def test_every_line_of_a_plot_is_in_its_legend_which_covers_no_point() -> None:
    sizes = [1 << power for power in range(10, 31)]
    many = [measured(40.0, size, name, mode) for name in COLLECTIVES for mode in ("in", "out") for size in sizes]
    runs = [("this run", outcome(results=results(*many))), ("baseline", outcome(results=results(*many)))]
    tree = ElementTree.fromstring(svg(runs))
    panels = [group for group in tree if group.tag.endswith("}g")]
    assert len(panels) == 2 * len(COLLECTIVES)
    for panel in panels:
        texts = [item for item in panel if item.tag.endswith("}text")]
        legend = [item for item in texts if (item.text or "").endswith(("this run", "baseline"))]
        assert len(legend) == 4 and all(float(item.attrib["y"]) < bench_plot.TOP for item in legend)
        lines = [item for item in panel if item.tag.endswith("}polyline") and item.attrib["stroke-width"] == "2"]
        assert len({item.attrib["stroke"] for item in lines}) == 4


def test_secrets_of_the_environment_are_not_saved() -> None:
    plan = BenchPlan(("allreduce",), (1 << 20,), env={"WANDB_API_KEY": "kanarienvogel42", "NCCL_DEBUG": "INFO"})
    saved = encode(outcome(plan=plan, asked=Asked("nccl-doctor bench --env WANDB_API_KEY=kanarienvogel42")))
    assert b"kanarienvogel42" not in saved and b'"NCCL_DEBUG": "INFO"' in saved


def test_different_torch_versions_are_said() -> None:
    from nccl_doctor.bench.fleet import _differences

    assert _differences({"a": host(torch=CPU), "b": host(torch=CPU)}) == []
    (text,) = _differences({"a": host(torch=CPU), "b": host(torch=CUDA), "c": host(torch=CUDA)})
    assert text == "different torch on the hosts: 2.13.0+cpu on a; 2.8.0+cu128 on b, c"


def test_who_answers_no_connection_is_named_and_not_those_who_ask() -> None:
    ends = {
        host: Collectives(
            host, world=3, ranks=(
                RankEnd(rank, where=Where("process-group"), exit=70, error=RankError("stuck", dialling=dialled)),
            ),
        )
        for rank, (host, dialled) in enumerate(
            {"a": (), "b": (), "c": ("10.0.0.1:4242", "172.17.0.1:1"), "d": ("10.0.0.1:4243",)}.items()
        )
    }  # fmt: skip
    prepared = {
        name: host(name, addresses={f"10.0.0.{number}": "eth0", "172.17.0.1": "docker0"})
        for number, name in enumerate(ends, 1)
    }
    found = outcome(facts=ends, prepared=prepared)
    (stuck,) = found.findings
    assert (stuck.id, stuck.hosts) == ("collectives.stuck.process-group", ("a",))


def test_exit_codes() -> None:
    from nccl_doctor.findings.exit_codes import ExitCode

    def code(fail_on: str | None, *kinds: str, compared: bool = False, **values: Any) -> ExitCode:
        found = msgspec.structs.replace(outcome(), verdicts=tuple(Verdict("allreduce", kind, "") for kind in kinds))  # type: ignore[arg-type]
        return msgspec.structs.replace(found, **{"findings": (), **values}).exit_code(fail_on, compared=compared)

    assert code("never", "slow", "cannot-judge") is ExitCode.HEALTHY
    assert code("slow", "good", "good") is ExitCode.HEALTHY
    slow = verdict_findings([Verdict("allreduce", "slow", "1 GB/s")], ("a", "b"))
    assert code("slow", "good", "slow", "cannot-judge", findings=slow) is ExitCode.FINDINGS
    pair = finding("collectives.slow-pair", Severity.WARN, "slow", Evidence("1 MB/s"), hosts=("a", "b"))
    assert code("slow", "good", findings=(pair,)) is ExitCode.FINDINGS  # whatever the collective reached
    assert code("never", "good", findings=(pair,)) is ExitCode.HEALTHY
    assert code("slow", "good", "cannot-judge") is ExitCode.INCOMPLETE
    assert code(None, "slow", "cannot-judge", findings=slow) is ExitCode.HEALTHY
    assert code(None, "good", "slow", "cannot-judge", findings=slow, min_busbw=1.0) is ExitCode.FINDINGS
    assert code(None, "good", "cannot-judge", min_busbw=1.0) is ExitCode.INCOMPLETE
    assert code(None, "good", findings=(pair,), min_busbw=1.0) is ExitCode.HEALTHY
    assert code("never", "slow", findings=slow, min_busbw=1.0) is ExitCode.HEALTHY
    assert code(None, "good", "slow", findings=slow, compared=True) is ExitCode.FINDINGS
    assert code(None, "good", "cannot-judge", compared=True) is ExitCode.INCOMPLETE
    assert code(None, "good", findings=(pair,), compared=True) is ExitCode.HEALTHY
    assert code("never", "slow", findings=slow, compared=True) is ExitCode.HEALTHY
    assert code("never", "wrong") is ExitCode.FINDINGS
    assert code("never", "cannot-judge", results=Results(8)) is ExitCode.NOTHING_CHECKED
    assert code("never", "good", complete=False) is ExitCode.FINDINGS
    assert code("never", "good", complete=False, notes=("interrupted by Ctrl-C",)) is ExitCode.INTERRUPTED
