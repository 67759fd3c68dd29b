"""What changed between two runs, or two hosts of one: found, ordered, folded; what always changes is not told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from facts_builder import NAMES, Builder, address
from fleets import interfaces, software, system
from rich.console import Console
from typing_in import typed

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.gpu import Fabric, GpuDevice, GpuFact, NvLink, Witness
from nccl_doctor.facts.gpu import System as NvmlSystem
from nccl_doctor.facts.interfaces import Address, Device, Interfaces
from nccl_doctor.facts.mesh import Link, Links
from nccl_doctor.facts.model import Fact, Outcome, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.system import Processors, SharedMemory, System
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence, Severity, finding
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.comparison import render
from nccl_doctor.rules import compare, compare_facts
from nccl_doctor.rules.judge import judge

GIB = 1 << 30


def gpus(**changes: Any) -> GpuFact:
    devices = tuple(
        msgspec.structs.replace(
            GpuDevice(
                i,
                bus_id=f"0000:{i:02x}:00.0",
                name="H100",
                vbios="96.00.30",
                temperature_c=40,
                ecc_uncorrected_aggregate=0,
                nvlinks=tuple(NvLink(n, True) for n in range(18)),
            ),
            **changes,
        )
        for i in range(8)
    )
    return GpuFact(Witness("ok"), Witness("ok"), NvmlSystem(count=8), devices)


def rich_fleet() -> Builder:
    """The mesh, and what hosts say of themselves."""
    builder = Builder(stages=("connectivity", "ports", "system", "software"))
    for name, probes in builder.probes.items():
        probes["system"] = msgspec.to_builtins(system())
        probes["software"] = msgspec.to_builtins(software())
        probes["gpu"] = msgspec.to_builtins(gpus())
        probes["interfaces"] = msgspec.to_builtins(interfaces(f"eth0/{address(name)}/24"))
        probes["environment"] = {"variables": {"NCCL_DEBUG": "WARN"}}
    return builder


def told(found: compare.Comparison) -> list[tuple[str, tuple[str, ...], str, str]]:
    return [(item.subject, item.hosts, item.before, item.after) for item in found.changes]


def test_the_same_run_has_no_change() -> None:
    found = compare.bundles(rich_fleet().bundle(), rich_fleet().bundle())
    assert (found.findings, found.changes, found.lost) == ((), (), ())
    assert found.compared == NAMES and found.exit_code is ExitCode.HEALTHY


def test_what_always_changes_is_not_told() -> None:
    after = rich_fleet()
    for probes in after.probes.values():
        probes["clock"]["offset"] = 0.004
        probes["listening"]["ephemeral"] = [50001, 50002, 50003]
        probes["system"]["shm"]["free_bytes"] = 60 * GIB
        probes["system"]["memory"]["MemAvailable"] = 400 * GIB
        for flow in probes["throughput"]["flows"]:
            flow["seconds"] = 1.9  # within a factor of two
        for gpu in probes["gpu"]["gpus"]:
            gpu["temperature_c"] = 55
    assert compare.bundles(rich_fleet().bundle(), after.bundle()).changes == ()


def test_a_new_failure_comes_first_with_the_fact_behind_it() -> None:
    after = rich_fleet()
    after.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "127.0.1.1 gpu02", "line": 2}
    for name in NAMES:
        after.probes[name]["software"]["system"] = {"kernel": "6.8.1"}
    found = compare.bundles(rich_fleet().bundle(), after.bundle())
    first = found.findings[0]
    assert (first.change, first.id, first.hosts) == ("new", "net.hostname-resolution.loopback", ("gpu02",))
    assert told(found)[0] == ("resolution", ("gpu02",), "10.0.0.2", "127.0.1.1")
    assert found.changes[0].found == "net.hostname-resolution.loopback"
    assert told(found)[1:] == [("kernel", NAMES, "none", "6.8.1")]
    assert found.exit_code is ExitCode.FINDINGS


@pytest.mark.parametrize(
    ("before", "after", "word"), [("WARN", "FAIL", "worse"), ("FAIL", "WARN", "milder"), ("FAIL", "FAIL", "")]
)
def test_the_same_finding_may_weigh_more_or_less(before: str, after: str, word: str) -> None:
    old, new = (finding("net.mtu", Severity[name], "t", Evidence("e"), hosts=("a",)) for name in (before, after))
    report = judge(rich_fleet().bundle())
    assert compare._change(old, new, (report, "a"), (report, "a")) == word


def test_a_finding_that_is_gone_is_no_failure() -> None:
    before = rich_fleet()
    before.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    found = compare.bundles(before.bundle(), rich_fleet().bundle())
    assert [(item.change, item.hosts) for item in found.findings] == [("gone", ("gpu02",))]
    assert found.exit_code is ExitCode.HEALTHY


def test_what_was_not_measured_again_is_not_gone() -> None:
    before, after = rich_fleet(), rich_fleet()
    before.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    del after.probes["gpu02"]["names"]
    found = compare.bundles(before.bundle(), after.bundle())
    assert [(item.change, item.id) for item in found.findings] == [("not-measured", "net.hostname-resolution.loopback")]
    assert found.lost == ("names: not collected",)
    assert not any(item.subject == "resolution" for item in found.changes)
    assert found.exit_code is ExitCode.INCOMPLETE


@pytest.mark.parametrize("verbose", [False, True])
def test_what_only_one_run_looked_at_is_told_where_it_is_more_than_informative(verbose: bool) -> None:
    rows = [
        compare.FindingChange(change, id, severity, "t", ("gpu01",))
        for change, id, severity in (
            ("not-measured", "net.mtu", Severity.FAIL),
            ("first-looked", "gpu.busy", Severity.WARN),
            ("not-measured", "collectives.measured", Severity.INFO),
            ("first-looked", "net.interface-choice", Severity.INFO),
            ("new", "policy.not-permitted", Severity.INFO),
        )
    ]
    found = compare.bundles(Builder().bundle(), Builder().bundle())
    render(
        msgspec.structs.replace(found, findings=tuple(rows)), console := Console(file=io.StringIO()), verbose=verbose
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    told = [row.id for row in rows if row.id in shown]
    assert told == [
        "net.mtu",
        "gpu.busy",
        *(["collectives.measured", "net.interface-choice"] * verbose),
        "policy.not-permitted",
    ]
    assert ("... and 2 notes on what only one run looked at" in shown) != verbose


def test_how_a_probe_ended_is_told_in_its_own_word() -> None:
    before, after = rich_fleet().bundle(), rich_fleet().bundle()
    ended = {"names": ProbeResult(Outcome.TIMED_OUT), "links": ProbeResult(Outcome.OK, {"links": 7})}
    host = after.hosts[0]
    hosts = (msgspec.structs.replace(host, probes={**host.probes, **ended}), *after.hosts[1:])
    found = compare.bundles(before, msgspec.structs.replace(after, hosts=hosts))
    assert set(found.lost) == {"names: timed-out", "links: unreadable"}


def test_what_the_first_run_did_not_look_for_may_be_older_and_fails_all_the_same() -> None:
    before, after = rich_fleet(), rich_fleet()
    del before.probes["gpu02"]["names"]
    after.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    found = compare.bundles(before.bundle(), after.bundle())
    assert [(item.change, item.hosts) for item in found.findings] == [("first-looked", ("gpu02",))]
    assert found.exit_code is ExitCode.FINDINGS


def test_a_second_gpu_of_a_bad_host_is_a_new_problem() -> None:
    def with_bad(*indexes: int) -> Builder:
        builder = rich_fleet()
        builder.stages = ("gpu",)
        for index in indexes:
            builder.probes["gpu03"]["gpu"]["gpus"][index]["remap_failure"] = True
        return builder

    found = compare.bundles(with_bad(1).bundle(), with_bad(1, 5).bundle())
    new = [item for item in found.findings if item.change == "new"]
    assert [(item.id, item.hosts) for item in new] == [("gpu.ecc.row-remap-failure", ("gpu03",))]
    assert len(new[0].where) == 1 and "0000:05:00.0" in new[0].where[0]


def test_equal_changes_fold_over_hosts_and_gpus() -> None:
    after = rich_fleet()
    for name in ("gpu01", "gpu02"):
        after.probes[name]["gpu"] = msgspec.to_builtins(gpus(vbios="96.00.99"))
    (change,) = compare.bundles(rich_fleet().bundle(), after.bundle()).changes
    assert (change.subject, change.hosts, len(change.items)) == ("gpu.vbios", ("gpu01", "gpu02"), 8)
    assert (change.before, change.after, change.ids) == ("96.00.30", "96.00.99", ("gpu.firmware-differs",))


def test_important_subjects_come_before_others_and_noise_needs_a_factor_of_two() -> None:
    after = rich_fleet()
    probes = after.probes["gpu04"]
    probes["environment"]["variables"]["NCCL_DEBUG"] = "INFO"
    probes["system"]["shm"] = msgspec.to_builtins(SharedMemory(True, 32 * GIB, 30 * GIB))
    probes["gpu"]["gpus"][7]["nvlinks"][3]["active"] = False
    probes["interfaces"]["devices"][1]["mtu"] = 9000
    for flow in probes["throughput"]["flows"]:
        flow["seconds"] = 4.0
    found = compare.bundles(rich_fleet().bundle(), after.bundle())
    assert told(found) == [
        ("gpu.nvlink", ("gpu04",), "18 of 18", "17 of 18"),
        ("nic.mtu", ("gpu04",), "", "9000 bytes"),
        ("environment", ("gpu04",), "WARN", "INFO"),
        ("shm", ("gpu04",), "64 GiB", "32 GiB"),
        ("metric.tcp", ("gpu04",), "1 GB/s", "0.25 GB/s"),
    ]
    assert found.changes[0].items == ("GPU 7 (0000:07:00.0)",)


def test_a_host_that_is_not_reached_any_more() -> None:
    after = rich_fleet()
    after.reach["gpu04"] = Reach(ReachOutcome.REFUSED, "refused")
    found = compare.bundles(rich_fleet().bundle(), after.bundle())
    assert ("reach", ("gpu04",), "ok", "refused") in told(found)
    assert (found.findings[0].id, found.findings[0].change) == ("host.ssh-refused", "new")
    assert found.exit_code is ExitCode.FINDINGS


def test_runs_without_a_common_host_compare_nothing() -> None:
    found = compare.bundles(Builder(("gpu01", "gpu02")).bundle(), Builder(("gpu03", "gpu04")).bundle())
    assert found.exit_code is ExitCode.NOTHING_CHECKED
    assert (found.only_a, found.only_b) == (("gpu01", "gpu02"), ("gpu03", "gpu04"))


def test_alike_hosts_of_one_run_do_not_differ_though_their_addresses_do() -> None:
    found = compare.hosts(rich_fleet().bundle(), NAMES)
    assert (found.findings, found.changes) == ((), ())


def test_hosts_of_one_run_are_compared_with_the_first() -> None:
    builder = rich_fleet()
    for name in ("gpu03", "gpu04"):
        builder.probes[name]["software"]["driver"]["version"] = "535.1"
    found = compare.hosts(builder.bundle(), ["gpu01", "gpu02", "gpu03", "gpu04"])
    assert told(found) == [("software.driver", ("gpu03", "gpu04"), "570.86.15", "535.1")]


def test_between_hosts_too_what_was_not_measured_is_not_gone() -> None:
    builder = rich_fleet()
    builder.probes["gpu01"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "127.0.1.1 gpu01", "line": 2}
    del builder.probes["gpu02"]["names"]
    one, other = (compare.hosts(builder.bundle(), pair) for pair in (["gpu01", "gpu02"], ["gpu02", "gpu01"]))
    assert ("not-measured", "net.hostname-resolution.loopback") in [(item.change, item.id) for item in one.findings]
    assert one.exit_code is ExitCode.INCOMPLETE
    assert ("first-looked", "net.hostname-resolution.loopback") in [(item.change, item.id) for item in other.findings]


def test_a_host_not_in_the_bundle_is_named() -> None:
    with pytest.raises(compare.CompareError, match=r"host 'gpu99' is not in the bundle; it has: gpu01, gpu02"):
        compare.hosts(Builder().bundle(), ["gpu01", "gpu99"])
    with pytest.raises(compare.CompareError, match="two or more"):
        compare.hosts(Builder().bundle(), ["gpu01", "gpu01"])


def test_every_id_in_the_data_file_has_a_playbook() -> None:
    for name, subject in compare.subjects().items():
        for id in subject.ids:
            assert for_finding(id) or id in ("host", "ib", "env"), f"{name}: {id}"


def saved(tmp_path: Path, name: str, builder: Builder) -> str:
    path = tmp_path / name
    bundles.write(builder.bundle(), path)
    return str(path)


def test_command_prints_and_exits(tmp_path: Path) -> None:
    bad = rich_fleet()
    bad.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "\x1b[2J", "line": 2}
    bad.probes["gpu02"]["environment"]["variables"]["NCCL_DEBUG"] = "\x1b[2J\u202e"
    good_file, bad_file = saved(tmp_path, "a.ndb", rich_fleet()), saved(tmp_path, "b.ndb", bad)
    run = typed("diff", good_file, bad_file)
    assert run.exit_code == 11
    assert "NEW FAILURE: net.hostname-resolution.loopback on gpu02." in run.output
    assert "\x1b" not in run.output and "\u202e" not in run.output
    run = typed("diff", good_file, bad_file, "--format", "json")
    document = json.loads(run.output)
    assert document["exit_code"] == 11 and document["changes"][0]["subject"] == "resolution"
    jsonschema.validate(
        document, json.loads((Path(__file__).resolve().parents[2] / "docs" / "diff.schema.json").read_text())
    )
    assert typed("diff", good_file, good_file).exit_code == 0
    assert typed("diff", bad_file, "--hosts", "gpu01,gpu02").exit_code == 11
    assert typed("diff", bad_file, "--hosts", "gpu02,gpu01").exit_code == 0


def test_a_policy_and_thresholds_judge_both_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What preflight ignores is no new failure of diff; what the site finds too little is one."""
    monkeypatch.chdir(tmp_path)
    bad = rich_fleet()
    bad.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "127.0.1.1 gpu02", "line": 2}
    words = ["diff", saved(tmp_path, "a.ndb", rich_fleet()), saved(tmp_path, "b.ndb", bad)]
    policy = tmp_path / "site.toml"
    policy.write_text("[[ignore]]\nid = 'net.hostname-resolution'\nuntil = 2999-01-01\nreason = 'ticket 12'\n")
    run = typed("", *words, "--policy", policy)
    assert run.exit_code == 0 and "ticket 12" in run.output
    policy.rename(tmp_path / "nccl-doctor.toml")  # as preflight finds it
    assert typed("", *words).exit_code == 0
    (tmp_path / "nccl-doctor.toml").write_text("ignored = []\n")
    run = typed("", *words)
    assert run.exit_code == 2 and "nccl-doctor.toml:1: unknown key 'ignored'" in run.output
    (tmp_path / "nccl-doctor.toml").unlink()

    small = rich_fleet()
    small.probes["gpu02"]["system"]["shm"] = msgspec.to_builtins(SharedMemory(True, 32 * GIB, 30 * GIB))
    words = ["diff", words[1], saved(tmp_path, "small.ndb", small)]
    assert typed("", *words).exit_code == 0
    (tmp_path / "site.yaml").write_text(f"shm.fail: {40 * GIB}\nshm.warn: {40 * GIB}\n")
    run = typed("", *words, "--thresholds", "site.yaml")
    assert run.exit_code == 11 and "NEW FAILURE: sys.shm.too-small on gpu02" in run.output


def test_of_several_new_failures_the_first_is_told_with_its_own_hosts(tmp_path: Path) -> None:
    bad = rich_fleet()
    bad.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "127.0.1.1 gpu02", "line": 2}
    bad.probes["gpu03"]["system"]["shm"] = msgspec.to_builtins(SharedMemory(True, 32 << 20, 32 << 20))
    run = typed("diff", saved(tmp_path, "a", rich_fleet()), saved(tmp_path, "b", bad))
    assert "NEW FAILURE: net.hostname-resolution.loopback on gpu02, and 1 more below." in run.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{a}", "{missing}"], "No such file"),
        (["{a}", "{text}"], "not a bundle"),
        (["{a}"], "give two bundles, or one bundle and --hosts"),
        (["{a}", "{a}", "--hosts", "gpu01,gpu02"], "give two bundles, or one bundle and --hosts"),
        (["{a}", "--hosts", "gpu01,gpu99"], "host 'gpu99' is not in the bundle"),
        (["{a}", "--hosts", "some/hostfile"], "--hosts: 'some/hostfile': expected a host name"),
        (["{a}", "{a}", "--format", "xml"], "is not one of text, json"),
        (["{a}", "{a}", "--policy", "{missing}"], "no.ndb: No such file"),
        (["{a}", "{a}", "--thresholds", "{text}"], "text"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "text").write_text("hello")
    files = {"a": saved(tmp_path, "a.ndb", Builder()), "missing": tmp_path / "no.ndb", "text": tmp_path / "text"}
    run = typed("diff", *(word.format(**files) for word in arguments))
    assert run.exit_code == 2 and message in run.output


def test_a_round_trip_is_told_beyond_a_factor_of_two() -> None:
    """The border: 1.9 times is noise, 2.1 times is told, with both numbers and their unit."""

    def with_time(seconds: float) -> Builder:
        builder = rich_fleet()
        for link in builder.probes["gpu01"]["links"]["links"]:
            if link["rtt_p50_ms"] is not None:
                link["rtt_min_ms"] = seconds
        return builder

    assert told(compare.bundles(with_time(0.1).bundle(), with_time(0.19).bundle())) == []
    assert told(compare.bundles(with_time(0.1).bundle(), with_time(0.21).bundle())) == [
        ("metric.round-trip", ("gpu01",), "0.1 ms", "0.21 ms")
    ]


def test_every_further_loss_of_a_link_is_told() -> None:
    after = rich_fleet()
    after.probes["gpu02"]["interfaces"]["devices"][1]["losses"] += 1
    found = compare.bundles(rich_fleet().bundle(), after.bundle())
    assert [(item.subject, item.items, item.hosts, item.before, item.after) for item in found.changes] == [
        ("metric.link-losses", ("eth0",), ("gpu02",), "1 losses", "2 losses")
    ]


def test_a_new_xid_and_a_changed_topology_cell_are_told() -> None:
    def with_log(*lines: str, cell: str) -> Builder:
        builder = rich_fleet()
        builder.probes["gpu01"]["kernel_log"] = {"source": "kmsg", "lines": [{"text": line} for line in lines]}
        text = f"\tGPU0\tGPU1\nGPU0\t X \t{cell}\nGPU1\t{cell}\t X \n\nLegend:\n  X    = Self\n"
        builder.probes["gpu01"]["topology"] = {"matrix": {"outcome": "ok", "text": text}}
        return builder

    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    found = compare.bundles(with_log(cell="NV18").bundle(), with_log(line, line, cell="SYS").bundle())
    assert [(item.subject, item.items, item.before, item.after) for item in found.changes] == [
        ("xid", ("Xid 79 at 0000:3b:00.0",), "", "in the log"),
        ("topology", ("GPU0-GPU1",), "NV18", "SYS"),
    ]


def test_a_dead_port_and_new_firmware_are_told() -> None:
    def with_port(state: str, firmware: str) -> Builder:
        builder = rich_fleet()
        builder.probes["gpu02"]["infiniband"] = {
            "devices": [
                {
                    "name": "mlx5_0",
                    "fw_ver": firmware,
                    "ports": [
                        {"port": 1, "state": state, "rate": "400 Gb/sec (4X NDR)", "counters": {"port_rcv_data": 5}}
                    ],
                }
            ]
        }
        return builder

    found = compare.bundles(with_port("4: ACTIVE", "28.1").bundle(), with_port("1: DOWN", "28.2").bundle())
    assert told(found) == [
        ("ib.state", ("gpu02",), "4: ACTIVE", "1: DOWN"),
        ("ib.firmware", ("gpu02",), "28.1", "28.2"),
    ]


def test_collective_bandwidth_is_compared_over_equal_hosts_only() -> None:
    def measured(time_us: float, names: tuple[str, ...] = NAMES) -> Builder:
        builder = Builder(names)
        event = {"event": "size", "collective": "allreduce", "size": 1 << 20, "rank_means_us": [time_us] * 4}
        builder.probes["gpu01"]["collectives"] = {"host": "gpu01", "events": [event]}
        return builder

    (change,) = compare.bundles(measured(1000).bundle(), measured(3000).bundle()).changes
    assert (change.subject, change.items, change.before, change.after) == (
        "metric.busbw",
        ("allreduce",),
        "1.57 GB/s",
        "0.524 GB/s",
    )
    fewer = compare.bundles(measured(1000).bundle(), measured(3000, NAMES[:3]).bundle())
    assert not any(item.subject == "metric.busbw" for item in fewer.changes)


FULL = GpuDevice(
    3,
    bus_id="0000:3b:00.0",
    name="H100",
    serial="165",
    uuid="GPU-1",
    recovery_action="none",
    remap_pending=False,
    nvlinks=(NvLink(0, True), NvLink(1, False)),
    fabric=Fabric("completed"),
    pcie_gen_max=5,
    pcie_width_max=16,
    mig_mode=False,
    power_limit_w=699.6,
    ecc_mode=True,
    persistence_mode=False,
    compute_mode="default",
)
LO = Address("lo", "inet", "127.0.0.1", 8, loopback=True)
ETH = (Address("eth0", "inet", "10.0.0.9", 24), Address("eth0", "inet", "10.0.0.10", 24))
LINK_LOCAL = Address("eth0", "inet6", "fe80::1", 64)
ZEROCONF = Address("eth1", "inet", "169.254.3.1", 16)


@pytest.mark.parametrize(
    ("fact", "rows"),
    [
        (GpuFact(Witness("timed-out"), Witness("not-run")), []),
        (
            GpuFact(Witness("ok"), Witness("ok"), system=NvmlSystem(count=1), gpus=(FULL,)),
            [
                ("gpu.count", "", "1"),
                ("gpu.model", "GPU 3 (0000:3b:00.0)", "H100"),
                ("gpu.identity", "GPU 3 (0000:3b:00.0)", "165"),
                ("gpu.recovery", "GPU 3 (0000:3b:00.0)", "none"),
                ("gpu.remap", "GPU 3 (0000:3b:00.0)", "nothing pending"),
                ("gpu.nvlink", "GPU 3 (0000:3b:00.0)", "1 of 2"),
                ("gpu.fabric", "GPU 3 (0000:3b:00.0)", "completed"),
                ("gpu.pcie", "GPU 3 (0000:3b:00.0)", "generation 5, 16 lanes"),
                ("gpu.mig", "GPU 3 (0000:3b:00.0)", "off"),
                ("gpu.power", "GPU 3 (0000:3b:00.0)", "700 W"),
                ("gpu.settings", "GPU 3 (0000:3b:00.0)", "ECC on, persistence off, compute mode default"),
            ],
        ),
        (
            GpuFact(
                Witness("ok"),
                Witness("ok"),
                system=NvmlSystem(count=1),
                gpus=(GpuDevice(0, uuid="GPU-1", remap_failure=True, pcie_gen_max=5),),
            ),
            [("gpu.count", "", "1"), ("gpu.identity", "GPU 0", "GPU-1"), ("gpu.remap", "GPU 0", "failed")],
        ),
        (
            Links(
                (
                    Link("b", "10.0.0.2", 29500, "master", "ok"),
                    Link("b", "10.0.0.2", 40000, "ephemeral", "timed-out"),
                    Link("b", "10.0.0.2", 40001, "ephemeral", "ok"),
                )
            ),
            [("link", "to b port 29500", "ok"), ("link", "to b, ephemeral", "timed-out")],
        ),
        (
            Interfaces(
                (LO, *ETH, LINK_LOCAL, ZEROCONF),
                devices=(
                    Device("lo", "unknown", mtu=65536, kind="loopback"),
                    Device("lo", "unknown", mtu=65536),
                    Device("veth1", "up", mtu=1500),
                    Device("eth0", "up", mtu=9000, speed_mbps=-1),
                    Device("eth1", speed_mbps=25000),
                ),
            ),
            [
                ("nic.address", "eth0", "10.0.0.10/24, 10.0.0.9/24"),
                ("nic.state", "eth0", "up"),
                ("nic.mtu", "eth0", "9000 bytes"),
                ("nic.address", "eth1", "169.254.3.1/16"),
                ("nic.speed", "eth1", "25000 Mb/s"),
            ],
        ),
    ],
)
def test_what_is_compared_of_a_fact(fact: Fact, rows: list[tuple[str, str, str]]) -> None:
    """Each value under its subject, in words; what the host does not tell is no value."""
    assert list(dict(compare_facts.READERS)[type(fact)](fact)) == rows


@pytest.mark.parametrize(
    ("memory", "allowed", "rows"),
    [
        ({"MemTotal": 8 * GIB}, 4, [("memory", "memory", "8 GiB"), ("memory", "CPUs allowed", "4")]),
        ({"MemFree": 8 * GIB}, 0, []),
    ],
)
def test_memory_and_cpus_are_compared_where_told(
    memory: dict[str, int], allowed: int, rows: list[tuple[str, str, str]]
) -> None:
    fact = msgspec.structs.replace(system(), memory=memory, processors=Processors(allowed=allowed))
    told = list(dict(compare_facts.READERS)[System](fact))
    assert [row for row in told if row[0] == "memory"] == rows
    limits = {item: value for subject, item, value in told if subject == "limit"}
    assert limits["memlock"] == "unlimited (hard unlimited)" and "B" not in limits["nofile"]
