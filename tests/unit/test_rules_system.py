"""Rules of the system stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleets import GIB, ids, only, run, software, system

from nccl_doctor.env.recommend_model import HostNeeds
from nccl_doctor.facts.model import HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.system import (
    Cgroup,
    Container,
    Filesystem,
    GpuProcess,
    GpuProcesses,
    Limit,
    Processors,
    SharedMemory,
)
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import engine, needs, thresholds

RULES = [
    rule.name
    for rule in engine.all_rules()
    if rule.name.startswith(("system.", "storage.", "limits.", "network_limits."))
]
MIB = 1 << 20


def host(**changes: Any) -> dict[str, dict[str, Any]]:
    return {"a": {"system": system(**changes), "software": software()}}


def limits(**changes: Limit) -> dict[str, Limit]:
    return {**system().limits, **changes}


@pytest.mark.parametrize("rule", RULES)
def test_a_healthy_host_gives_nothing_and_passes(rule: str) -> None:
    result = run(rule, {"a": host()["a"], "b": host()["a"]})
    # Most kernels track no connections: that rule has nothing to look at.
    looked = dict(result.skipped) if rule == "network_limits.connection_tracking" else result.passed
    assert not result.findings and not result.unknown and tuple(looked) == ("a", "b")


@pytest.mark.parametrize("rule", RULES)
def test_a_probe_that_timed_out_is_unknown(rule: str) -> None:
    result = run(rule, {"a": {"system": ProbeResult(Outcome.TIMED_OUT, None, "hung")}})
    assert not result.passed and (result.unknown or result.skipped)


@pytest.mark.parametrize(
    ("shm", "id", "severity"),
    [
        (SharedMemory(False), "sys.shm.missing", Severity.FAIL),
        (SharedMemory(True, 64 * MIB, 64 * MIB), "sys.shm.too-small", Severity.FAIL),
        (SharedMemory(True, 512 * MIB, 512 * MIB), "sys.shm.too-small", Severity.WARN),
        (SharedMemory(True, GIB, GIB), None, None),
        (
            SharedMemory(True, 8 * GIB, MIB, leftovers={"nccl-": {"files": 9, "bytes": 8 * GIB}}),
            "sys.shm.full",
            Severity.FAIL,
        ),
    ],
)
def test_shared_memory(shm: SharedMemory, id: str | None, severity: Severity | None) -> None:
    result = run("storage.shared_memory", host(shm=shm))
    assert [(item.id, item.severity) for item in result.findings] == ([(id, severity)] if id else [])


def test_shared_memory_of_a_container_is_cured_by_its_start() -> None:
    small = SharedMemory(True, 64 * MIB, 64 * MIB)
    found = only(run("storage.shared_memory", host(shm=small, container=Container(("/.dockerenv",)))))
    assert "--shm-size" in found.fixes[0].text and "64 MiB" in found.title


@pytest.mark.parametrize(
    ("soft", "rdma", "severity"),
    [
        (65536, ("mlx5_0",), Severity.FAIL),
        (8 * MIB, ("mlx5_0",), Severity.FAIL),
        (-1, ("mlx5_0",), None),
        (64 * GIB, ("mlx5_0",), None),
        (65536, (), Severity.INFO),
        (8 * MIB, (), None),
    ],
)
def test_locked_memory_matters_with_rdma_only(soft: int, rdma: tuple[str, ...], severity: Severity | None) -> None:
    facts = host(limits=limits(memlock=Limit(soft, soft)), rdma_devices=rdma)
    result = run("limits.locked_memory", facts)
    assert [item.severity for item in result.findings] == ([severity] if severity else [])
    if rdma:  # env recommend speaks of no other limit than the rule
        assert needs_of(facts).memlock_bytes == (soft if severity is Severity.FAIL else None)


def needs_of(facts: Mapping[str, Mapping[str, Any]]) -> HostNeeds:
    """What env recommend knows of the one host."""
    read = ProbeResult(Outcome.OK, msgspec.to_builtins(facts["a"]["system"]))
    host_facts = HostFacts("a", Reach(ReachOutcome.OK), {"system": read})
    ((told,), _) = needs.of_fleet(engine.Fleet((engine.Host(host_facts),), Plan()))
    return told


@pytest.mark.parametrize(
    ("container", "severity"),
    [
        (Container(("/.dockerenv",), capabilities="00000000a80465fb", user_namespace=False), Severity.INFO),
        (Container(capabilities="000001ffffffffff", user_namespace=False), Severity.WARN),  # root on a host
        (
            Container(("/.dockerenv",), capabilities="00000000a80425fb", user_namespace=False),
            Severity.FAIL,
        ),  # Docker's own
        (Container(("/.dockerenv",), capabilities="000001ffffffffff", user_namespace=True), Severity.FAIL),
        (Container(("/.dockerenv",), capabilities="000001ffffffffff"), Severity.FAIL),  # of an older agent
        (Container(capabilities="everything", user_namespace=False), Severity.FAIL),
        (Container(), Severity.FAIL),
    ],
)
def test_who_may_lock_memory_freely_is_not_bound_by_the_limit(container: Container, severity: Severity) -> None:
    facts = host(limits=limits(memlock=Limit(65536, 65536)), rdma_devices=("mlx5_0",), container=container)
    found = only(run("limits.locked_memory", facts))
    assert found.severity is severity
    assert needs_of(facts).memlock_bytes == (65536 if severity is Severity.FAIL else None)
    assert (f"CapEff {container.capabilities}" in found.evidence[0].text) == (severity is not Severity.FAIL)


def test_what_is_read_only_is_not_full() -> None:
    """An image (squashfs) has no free byte; where the job writes, that it is read-only is the fault."""
    tmp, home, *_ = system().filesystems
    image = {"read_only": True, "free_bytes": 0, "inodes_free": 0, "type": "squashfs"}
    assert run("storage.disks", host(filesystems=(tmp, msgspec.structs.replace(home, **image)))).passed
    assert ids(run("storage.disks", host(filesystems=(msgspec.structs.replace(tmp, **image), home)))) == [
        ("sys.disk-full.read-only", ("a",))
    ]


def test_a_full_disk_tells_its_paths_where_they_are_not_its_mount() -> None:
    tmp, *_ = system().filesystems
    for mount, told in (("/tmp", "is full: 0 B free"), ("/", "is full: 0 B free (/tmp)")):
        full = msgspec.structs.replace(tmp, path="/tmp", mount=mount, free_bytes=0)
        assert only(run("storage.disks", host(filesystems=(full,)))).title.endswith(told)


def test_places_that_the_host_tells_are_one_word_of_the_shell() -> None:
    tmp, home, *_ = system().filesystems
    evil = {"path": "/tmp/a b;reboot", "looked_at": "/tmp/a b;reboot", "mount": "/tmp/a b;reboot"}
    for changes in ({"free_bytes": 0}, {"inodes_free": 0}, {"read_only": True}):
        found = only(run("storage.disks", host(filesystems=(msgspec.structs.replace(tmp, **evil, **changes), home))))
        assert all("'/tmp/a b;reboot'" in fix.command for fix in found.fixes if "reboot" in fix.command)
        assert any("reboot" in fix.command for fix in found.fixes)


@pytest.mark.parametrize(("hard", "command"), [(-1, "ulimit -u 65536"), (100000, "ulimit -u 100000"), (2000, "tee")])
def test_more_threads_are_asked_for_up_to_the_hard_limit(hard: int, command: str) -> None:
    found = only(run("limits.threads", host(user=1000, limits=limits(nproc=Limit(2000, hard)))))
    assert found.severity is Severity.WARN and command in found.fixes[0].command
    if command == "tee":
        assert "printf '* soft nproc 65536\\n* hard nproc 65536\\n' | sudo tee" in found.fixes[0].command


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (Cgroup(), "passed"),
        (Cgroup(cpu_limit=8.0), "cpus"),
        (Cgroup(memory_limit_bytes=40 * GIB, memory_used_bytes=20 * GIB, memory_cache_bytes=4 * GIB), "memory"),
        (Cgroup(memory_limit_bytes=40 * GIB, memory_used_bytes=4 * GIB), "passed"),
        (Cgroup(memory_limit_bytes=40 * GIB), "unknown"),
        (Cgroup(version=0), "unknown"),
    ],
)
def test_what_is_required_is_held_against_what_the_cgroup_leaves(group: Cgroup, said: str) -> None:
    plan = Plan(require=("cpus=16", "memory=32G"))
    result = run("requirements.room", host(cgroup=group), plan)
    assert ids(result) == ([(f"require.{said}", ("a",))] if said in ("cpus", "memory") else [])
    assert bool(result.passed) == (said == "passed") and bool(result.unknown) == (said == "unknown")


def test_fixes_are_such_as_can_work_there() -> None:
    """No remount of a /dev/shm that is not there, and no ulimit above the hard limit."""
    (fix,) = only(run("storage.shared_memory", host(shm=SharedMemory(False)))).fixes
    assert "mount -t tmpfs" in fix.command and "remount" not in fix.command
    for hard, offered in ((-1, True), (8 << 20, False)):
        facts = host(limits=limits(memlock=Limit(8 << 20, hard)), rdma_devices=("mlx5_0",))
        commands = [fix.command for fix in only(run("limits.locked_memory", facts)).fixes]
        assert ("ulimit -l unlimited" in commands) is offered


def test_shared_memory_that_cannot_be_written_and_a_tmp_that_executes_nothing() -> None:
    shut = msgspec.structs.replace(system().shm, read_only=True)
    assert ids(run("storage.shared_memory", host(shm=shut))) == [("sys.shm.read-only", ("a",))]
    tmp, *others = system().filesystems
    strict = (msgspec.structs.replace(tmp, noexec=True), *others)
    found = only(run("storage.executable_caches", host(filesystems=strict)))
    assert found.id == "sys.noexec" and found.severity is Severity.WARN
    assert not run("storage.executable_caches", host()).findings
    untold = (msgspec.structs.replace(tmp, noexec=None), *others)
    assert run("storage.executable_caches", host(filesystems=untold)).unknown
    scratch = msgspec.structs.replace(tmp, path="/scratch/a", looked_at="/scratch", mount="/scratch", noexec=True)
    both = run("storage.executable_caches", host(filesystems=(untold[0], scratch)))
    assert only(both).id == "sys.noexec" and both.unknown  # what is not known hides no fault
    assert run("storage.shared_memory", host(shm=msgspec.structs.replace(shut, read_only=None))).unknown


def test_the_one_host_with_lower_limits_is_named() -> None:
    low = {"system": system(limits=limits(memlock=Limit(65536, 65536)))}
    good = {"system": system()}
    found = only(run("limits.limits_differ", {"a": good, "b": low, "c": good}))
    assert found.hosts == ("b",) and "64 KiB here and unlimited on the other hosts" in found.title
    assert ids(run("limits.limits_differ", {"a": good, "b": low})) == []  # nobody knows which is right
    assert ids(run("limits.limits_differ", {"a": low, "b": low, "c": good})) == []  # higher than the others is no fault
    cut = {"system": system(limits=limits(fsize=Limit(1000000, 1000000)))}
    wide = {"system": system(limits=limits(fsize=Limit(-1, -1)))}
    assert "file size is 977 KiB" in only(run("limits.limits_differ", {"a": wide, "b": cut, "c": wide})).title
    few = {"system": system(limits=limits(nofile=Limit(256, 256)))}
    assert ids(run("limits.limits_differ", {"a": good, "b": few, "c": good})) == []  # sys.nofile names it


@pytest.mark.parametrize(("soft", "severity"), [(256, Severity.FAIL), (512, Severity.WARN), (1024, None), (-1, None)])
def test_open_files(soft: int, severity: Severity | None) -> None:
    result = run("limits.open_files", host(limits=limits(nofile=Limit(soft, 4096))))
    assert [item.severity for item in result.findings] == ([severity] if severity else [])


def test_open_files_are_raised_as_far_as_the_hard_limit_allows() -> None:
    def command(hard: int) -> str:
        return only(run("limits.open_files", host(limits=limits(nofile=Limit(256, hard))))).fixes[0].command

    assert command(4096) == "ulimit -n 4096" and command(-1) == "ulimit -n 65536" and "limits.d" in command(256)
    low = only(run("limits.open_files", host(limits=limits(nofile=Limit(256, 256)))))
    assert low.fixes[0].text == "raise the limit for logins, and log in again"


def test_threads() -> None:
    tight = Cgroup(pids_limit=1000, pids_used=800, pids_group="/sys/fs/cgroup/x")
    assert ids(run("limits.threads", host(cgroup=tight)), Severity.FAIL) == [("sys.threads.pids-limit", ("a",))]
    assert ids(run("limits.threads", host(cgroup=Cgroup(pids_limit=100000, pids_used=800)))) == []
    few = limits(nproc=Limit(1024, 1024))
    assert ids(run("limits.threads", host(limits=few, user=1000))) == [("sys.threads.nproc", ("a",))]
    assert ids(run("limits.threads", host(limits=few, user=0))) == []  # the limit does not bind root


def disk(**changes: Any) -> Filesystem:
    return msgspec.structs.replace(system().filesystems[0], **changes)


@pytest.mark.parametrize(
    ("entry", "id"),
    [
        (disk(free_bytes=0), "sys.disk-full"),
        (disk(inodes_free=3), "sys.disk-full.inodes"),
        (disk(free_bytes=GIB), "sys.disk-full.low"),
        (disk(read_only=True), "sys.disk-full.read-only"),
        (disk(role="home", path="/home/u", read_only=True), None),
        (disk(size_bytes=GIB, free_bytes=GIB - MIB), None),  # a small disk that is empty
        (disk(inodes=0, inodes_free=0), None),  # btrfs counts none
    ],
)
def test_disks(entry: Filesystem, id: str | None) -> None:
    assert [item[0] for item in ids(run("storage.disks", host(filesystems=(entry,))))] == ([id] if id else [])


def test_a_tmpfs_is_named_once() -> None:
    full = disk(free_bytes=0, mount="/tmp", type="tmpfs", source="tmpfs")
    assert only(run("storage.disks", host(filesystems=(full,)))).title.startswith("/tmp (tmpfs) is full")


def test_one_full_disk_is_one_finding_whatever_lies_on_it() -> None:
    entries = tuple(
        disk(role=role, path=path, free_bytes=0) for role, path in (("/tmp", "/tmp"), ("cache", "/root/.cache"))
    )
    found = only(run("storage.disks", host(filesystems=entries)))
    assert "/tmp, /root/.cache" in found.title and "/dev/sda1" in found.title


def test_a_disk_that_could_not_be_asked_is_unknown() -> None:
    result = run("storage.disks", host(filesystems=(disk(), disk(outcome="not-permitted", path="/data"))))
    assert not result.findings and not result.passed and "/data" in result.unknown[0].what
    beside = run("storage.disks", host(filesystems=(disk(free_bytes=GIB), disk(outcome="failed", path="/data"))))
    assert only(beside).severity is Severity.WARN and "/data" in beside.unknown[0].what


def test_hung_mount_is_named_with_its_server() -> None:
    hung = Filesystem("home", "/home/u", "timed-out", mount="/home", type="nfs4", source="nas1:/export/home")
    found = only(run("storage.hung_mounts", host(filesystems=(disk(), hung))))
    assert "/home (nfs4 from nas1:/export/home)" in found.title and "rpcinfo -t nas1" in found.fixes[1].command
    assert not run("storage.disks", host(filesystems=(disk(), hung))).findings


def test_memory() -> None:
    assert ids(run("system.memory", host(memory={"MemTotal": 512 * GIB, "MemAvailable": GIB}))) == [
        ("sys.host-oom.low-memory", ("a",))
    ]
    tight = Cgroup(
        memory_limit_bytes=16 * GIB, memory_used_bytes=8 * GIB, memory_cache_bytes=2 * GIB, memory_group="/g"
    )
    assert ids(run("system.memory", host(cgroup=tight))) == [("sys.host-oom.cgroup-limit", ("a",))]  # 10 GiB for 8 GPUs
    without = {"a": {"system": system(cgroup=tight, gpu_processes=GpuProcesses())}}
    assert ids(run("system.memory", without)) == []  # no GPU: 10 GiB will do
    for group in (Cgroup(oom_kills=2), Cgroup(oom_kills=2, memory_limit_bytes=GIB)):  # whatever else is not known
        assert ids(run("system.memory", host(cgroup=group))) == [("sys.host-oom.killed", ("a",))]
    assert run("system.memory", host(memory={})).unknown


def test_limits_of_cgroups_that_are_not_mounted_are_unknown() -> None:
    nowhere = Cgroup(version=0)
    for rule in ("system.memory", "limits.threads", "system.cpus"):
        result = run(rule, host(cgroup=nowhere))
        assert not result.passed and result.unknown[0].what == "cgroup limits"
    few = run("system.cpus", host(cgroup=nowhere, processors=Processors(count=64, allowed=8)))
    assert ids(few) == [("sys.cpu-limit", ("a",))]  # affinity alone is too tight


def test_cpus() -> None:
    assert ids(run("system.cpus", host(processors=Processors(count=64, allowed=8)))) == [("sys.cpu-limit", ("a",))]
    assert ids(run("system.cpus", host(cgroup=Cgroup(cpu_limit=4.0)))) == [("sys.cpu-limit", ("a",))]
    assert "a" in run("system.cpus", {"a": {"system": system(gpu_processes=GpuProcesses())}}).skipped


def test_gpus_that_only_their_device_files_tell_count() -> None:
    """The software stage, which looks at the bus, may be left out: that is no host without GPUs."""
    few = {"a": {"system": system(processors=Processors(count=64, allowed=8))}}
    assert "for 8 GPUs" in only(run("system.cpus", few)).title


def test_gpus_of_the_bus_that_a_container_was_not_given_need_no_cpus() -> None:
    """One of eight: its device file alone is here, and the whole bus."""
    of_one = {"gpu_processes": GpuProcesses(gpu_devices=1), "processors": Processors(count=64, allowed=8)}
    assert ids(run("system.cpus", host(**of_one))) == []
    closed = {"gpu_processes": GpuProcesses(), "processors": Processors(count=64, allowed=8)}
    assert "for 8 GPUs" in only(run("system.cpus", host(**closed))).title  # no driver yet: the bus tells


def test_what_could_not_be_read_is_unknown() -> None:
    without = {name: limit for name, limit in system().limits.items() if name not in ("nproc", "fsize")}
    for rule, changes, what in (
        ("limits.threads", {"limits": without}, "limit nproc"),
        ("limits.threads", {"cgroup": Cgroup(pids_limit=1000)}, "pids.current"),
        ("system.memory", {"cgroup": Cgroup(memory_limit_bytes=GIB)}, "memory used"),
        ("storage.disks", {"filesystems": (disk(read_only=None),)}, "mount options of /tmp"),
    ):
        result = run(rule, host(**changes))
        assert not result.passed and [gap.what for gap in result.unknown] == [what], rule
    result = run("limits.limits_differ", {"a": host(limits=without)["a"], "b": host()["a"]})
    assert result.passed == ("b",) and {"limit on file size", "limit on processes"} == {g.what for g in result.unknown}


def test_tcp_buffers_and_ports() -> None:
    small = {**system().sysctls, "net.ipv4.tcp_rmem": "4096 87380 174760"}
    assert ids(run("network_limits.tcp_buffers", host(sysctls=small))) == [("net.slow.tcp-buffers", ("a",))]
    crippled = {**system().sysctls, "net.ipv4.tcp_rmem": "4096 4096 4096"}
    worse = only(run("network_limits.tcp_buffers", host(sysctls=crippled)))
    assert worse.severity is Severity.FAIL and "net.slow.link" in worse.explains
    assert run("network_limits.tcp_buffers", host(sysctls={})).unknown
    narrow = {**system().sysctls, "net.ipv4.ip_local_port_range": "60000 60099"}
    assert ids(run("network_limits.ephemeral_ports", host(sysctls=narrow))) == [("net.ephemeral-ports.few", ("a",))]
    nothing = {**system().sysctls, "net.ipv4.ip_local_port_range": "40000 40003"}
    assert only(run("network_limits.ephemeral_ports", host(sysctls=nothing))).severity is Severity.FAIL
    inside = run("network_limits.ephemeral_ports", host(), Plan(master="a", master_port=40000))
    assert ids(inside, Severity.INFO) == [("net.port-in-use.ephemeral-range", ("a",))]


def holder(pid: int, command: str, state: str = "S") -> GpuProcess:
    return GpuProcess(pid, command, "alice", state, 260000.0, ("/dev/nvidia0",))


def test_processes_on_gpus() -> None:
    def holders(*processes: GpuProcess, hidden: int = 0, user: int = 0) -> dict[str, dict[str, Any]]:
        return host(gpu_processes=GpuProcesses(8, processes, hidden, 300), user=user)

    found = only(run("system.gpu_holders", holders(holder(42, "python3"), holder(7, "nv-hostengine"))))
    assert (
        found.id == "gpu.busy"
        and "pid 42 python3 of alice" in found.evidence[0].text
        and "3 d ago" in found.evidence[0].text
    )
    assert ids(run("system.gpu_holders", holders(holder(42, "python3", "Z"))), Severity.FAIL) == [
        ("gpu.busy.stuck-process", ("a",))
    ]
    assert ids(run("system.gpu_holders", holders(holder(7, "nv-hostengine")))) == []
    blind = run("system.gpu_holders", holders(hidden=120, user=1000))
    assert not blind.passed and "only root" in blind.skipped["a"]


def test_containers_are_a_note_where_only_some_hosts_are() -> None:
    inside = {"system": system(container=Container(("/.dockerenv",)))}
    assert ids(run("system.containers", {"a": inside, "b": inside})) == []
    assert ids(run("system.containers", {"a": inside, "b": {"system": system()}}), Severity.INFO) == [
        ("sys.container", ("a",))
    ]


def test_every_threshold_is_read_by_a_rule() -> None:
    code = "".join(path.read_text() for path in Path(thresholds.__file__).parent.glob("*.py"))
    assert [id for id in thresholds.defaults() if f'"{id}"' not in code] == []


def test_every_threshold_says_where_it_comes_from() -> None:
    for id, row in thresholds.defaults().items():
        assert row.unit and len(row.source) > 8 and row.date.year >= 2026, id


def test_thresholds_of_the_user(tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("nofile.warn: {value: 4096, unit: files, source: our policy, date: 2026-11-21}\n")
    usual = thresholds.value("nofile.fail")
    with thresholds.using(thresholds.load(file)):
        assert (thresholds.value("nofile.warn"), thresholds.value("nofile.fail")) == (4096, usual)
    file.write_text("nofile.wran: {value: 4096, unit: files, source: our policy, date: 2026-11-21}\n")
    with pytest.raises(thresholds.ThresholdError, match=r"called .nofile\.wran.; did you mean .nofile\.warn.\?"):
        thresholds.load(file)
    file.write_text("nofile.warn: 4096\n")  # a number alone: the unit is the default row's
    row = thresholds.load(file)["nofile.warn"]
    assert (row.value, row.unit, row.source) == (4096, "files", str(file))
    file.write_text("ib.ber: 1e-13\nib.errors.total: .inf\n")  # to YAML, the first is a text
    rows = thresholds.load(file)
    assert (rows["ib.ber"].value, rows["ib.errors.total"].value) == (1e-13, float("inf"))


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "~\n", "null\n"])
def test_a_thresholds_file_without_a_row_changes_none(text: str, tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert thresholds.load(file) == thresholds.defaults()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nofile.warn: {valeu: 1, unit: x, source: us, date: 2026-11-21}",
            r"nofile\.warn: .*`valeu`; give a number, or",
        ),
        ("nofile.warn: many", r"nofile\.warn: Expected `object`"),
        ("nofile.warn: true", r"nofile\.warn: "),
        ("nofile.warn: .nan", r"nofile\.warn: nan is no threshold"),
        ("nofile.warn: -1", r"nofile\.warn: -1 is no threshold"),
        ("nofile.warn: 1" + "0" * 400, r"nofile\.warn: "),
        ("nofile.warn: 1\nnproc.warn: 2\nnofile.warn: 3", r"line 3: 'nofile\.warn' stands there twice"),
        ("a: [", r"mine\.yaml: not YAML: while parsing"),
        ("a: 2026-05-40", r"mine\.yaml: not YAML: day is out of range"),
        ("a: " + "9" * 5000, r"mine\.yaml: not YAML: Exceeds the limit"),
        ("a: !!float q", r"mine\.yaml: not YAML: could not convert"),
        ("[" * 5000, r"mine\.yaml: not YAML: maximum recursion"),
        ("- 1", r"expected lines of `id: number`"),
        (None, r"mine\.yaml: No such file"),
    ],
)
def test_mistakes_in_a_thresholds_file(text: str | None, message: str, tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(thresholds.ThresholdError, match=message) as told:
        thresholds.load(file)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("memory", "severities"),
    [
        ({"MemTotal": 512 * GIB, "MemAvailable": 26 * GIB}, []),
        ({"MemTotal": 512 * GIB, "MemAvailable": 25 * GIB}, [Severity.WARN]),  # under a twentieth of it
        ({"MemTotal": 16 * GIB, "MemAvailable": 2 * GIB}, []),
        ({"MemTotal": 16 * GIB, "MemAvailable": 2 * GIB - 1}, [Severity.WARN]),  # under 2 GiB, though an eighth of it
        ({"MemTotal": 4 * GIB, "MemAvailable": GIB}, []),  # a small machine: a quarter of it is free
        ({"MemTotal": 100, "MemAvailable": 25}, []),
        ({"MemAvailable": GIB}, None),
        ({"MemTotal": GIB}, None),
    ],
)
def test_where_available_memory_is_too_little(memory: dict[str, int], severities: list[Severity] | None) -> None:
    """Under 2 GiB (a quarter of a small machine), or under a twentieth."""
    result = run("system.memory", host(memory=memory))
    assert [item.severity for item in result.findings] == (severities or [])
    assert bool(result.unknown) is (severities is None)
    killed = run("system.memory", host(cgroup=Cgroup(oom_kills=2)))
    assert [item.severity for item in killed.findings] == [Severity.WARN]


@pytest.mark.parametrize(
    ("count", "severity", "told"),
    [(100, None, ""), (850, Severity.WARN, "nearly full (850 of 1000"), (1000, Severity.FAIL, "full (1000 of 1000")],
)
def test_a_full_connection_tracking_table_is_told(count: int, severity: Severity | None, told: str) -> None:
    tracked = {"net.netfilter.nf_conntrack_count": str(count), "net.netfilter.nf_conntrack_max": "1000"}
    result = run(
        "network_limits.connection_tracking", {"a": {"system": system(sysctls={**system().sysctls, **tracked})}}
    )
    assert [(item.severity, told in item.title) for item in result.findings] == ([(severity, True)] if severity else [])


def test_without_connection_tracking_there_is_no_table() -> None:
    result = run("network_limits.connection_tracking", {"a": {"system": system()}})
    assert not result.passed and "no connection tracking" in dict(result.skipped)["a"]


def test_a_queue_shorter_than_the_job_is_told_and_whose_it_is() -> None:
    def with_queue(length: str, **changes: Any) -> dict[str, Any]:
        sysctls = {**system().sysctls, "net.core.somaxconn": length}
        return {"system": system(sysctls=sysctls, **changes), "software": software()}

    rule = "network_limits.listening_queue"
    assert not run(rule, {name: with_queue("16") for name in "ab"}).findings  # two hosts with eight GPUs each
    found = only(run(rule, {**{name: with_queue("16") for name in "ab"}, "c": with_queue("4096")}))
    assert (found.id, found.hosts, found.severity) == ("net.listen-backlog", ("a", "b"), Severity.WARN)
    assert "only 16 connections" in found.title and "24 ranks" in found.title
    result = run(rule, {"a": with_queue(""), "b": with_queue("4096")})
    assert result.passed == ("b",) and result.unknown[0].hosts == ("a",)


@pytest.mark.parametrize(
    ("need", "short"),
    [
        ("disk=200G", 0), ("disk=201G", 1), ("disk=301G", 2), ("shm=63G", 0), ("shm=64G", 1),
        ("memory=500G", 0), ("memory=501G", 1), ("cpus=64", 0), ("cpus=65", 1),
    ],
)  # fmt: skip
def test_a_host_with_less_than_what_is_required_fails(need: str, short: int) -> None:
    result = run("requirements.room", host(), Plan(require=(need,)))
    assert ids(result, Severity.FAIL) == [(f"require.{need.partition('=')[0]}", ("a",))] * short
    assert not result.unknown and result.passed == (() if short else ("a",))


def test_a_disk_that_cannot_be_looked_at_is_neither_large_enough_nor_too_small() -> None:
    silent = msgspec.structs.replace(system().filesystems[1], outcome="timed-out", free_bytes=0)
    result = run("requirements.room", host(filesystems=(system().filesystems[0], silent)), Plan(require=("disk=1G",)))
    assert not result.findings and not result.passed and "timed-out" in result.unknown[0].why
    both = Plan(require=("disk=1G", "shm=999T"))
    result = run("requirements.room", host(filesystems=(silent,)), both)
    assert ids(result) == [("require.shm", ("a",))] and [gap.what for gap in result.unknown] == ["disk=1G"]
