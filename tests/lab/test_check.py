"""``nccl-doctor check`` in the lab: every fault is named, on the guilty host, with proof and a playbook."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from nccl_doctor.findings import playbooks

from . import faults, gate, machine
from .conftest import CleanRun
from .lab import PROJECT, Lab

HEALTHY, FAULTY = 0, 11


@dataclass(frozen=True)
class Case:
    """A fault, and the finding that must come first for it.

    ``ids``: the finding's id is one of these or lies beneath one. ``guilty``: exactly the hosts it names. ``quotes``:
    each must occur in its title or evidence. ``options``: further options of check. ``severity`` info or warn: the
    verdict stays healthy.
    """

    fault: str
    ids: tuple[str, ...]
    guilty: tuple[str, ...] = ("gpu02",)
    host: str = "gpu02"
    parameters: dict[str, Any] = field(default_factory=dict)
    quotes: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--quick",)
    severity: str = "fail"

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Links are measured where ``--quick`` is not given: beside other tests they would be slow for another reason."""
        return [] if "--quick" in self.options else [pytest.mark.alone]

    def __str__(self) -> str:
        return "-".join([self.fault, *(f"{name}-{value}" for name, value in self.parameters.items())])


EVERYONE = ("gpu01", "gpu02", "gpu03", "gpu04")
# For what shows in the hosts' own facts alone, the slow measurements between hosts are left out.
OWN = ("--quick", "--skip", "connectivity", "--skip", "ports")

CASES = [
    # the way in
    Case("sshd-down", ("host.ssh-refused",), quotes=("refused",)),
    Case("sshd-hung", ("host.ssh-timeout",)),
    Case("ssh-filtered", ("host.ssh-timeout",)),
    Case("host-down", ("host.no-route",), quotes=("oute",)),
    Case("host-key-changed", ("host.ssh-key-changed",), quotes=("SHA256:",)),
    Case("host-key-unknown", ("host.ssh-key-unknown",)),
    Case("authentication-fails", ("host.ssh-auth",)),
    Case("name-unknown", ("host.name-unresolved",), quotes=("gpu02",)),
    # what answers
    Case("no-python", ("host.no-python",)),
    Case("old-python", ("host.python-too-old",), quotes=("3.6",)),
    Case("garbage-answer", ("host.unexpected-output",), quotes=("owned",)),
    Case("answer-cut", ("host.cut-off",)),
    Case("answer-drips", ("host.ssh-timeout",), parameters={"bytes_per_s": 100}, quotes=("too slowly",)),
    # names
    Case("own-name-loopback", ("net.hostname-resolution.loopback",), quotes=("127.0.1.1", "/etc/hosts")),
    Case("stale-address", ("net.hostname-resolution",), quotes=("10.77.0.99", "gpu03")),
    Case("peer-unresolvable", ("net.hostname-resolution.unresolved",), quotes=("gpu03",)),
    Case("own-name-unresolvable", ("net.hostname-resolution.unresolved",), quotes=("gpu02",)),
    # ports
    Case("port-dropped", ("net.firewall.dropped",), quotes=("gpu02 itself can connect out",)),
    Case("port-dropped", ("net.firewall.dropped",), parameters={"outward": True}),
    Case("port-dropped", ("net.firewall.dropped",), quotes=("of 16 ports",), parameters={"ports": "59235-60999"}),
    Case("outbound-dropped", ("net.firewall.dropped",), quotes=("from gpu02",)),
    Case("port-rejected", ("net.firewall",), parameters={"reply": "icmp"}),
    Case("port-rejected", ("net.firewall.rejected",), parameters={"reply": "reset"}),
    Case("master-port-dropped", ("net.master-unreachable",), ("gpu01",), "gpu01", quotes=("29500",)),
    Case("port-taken", ("net.port-in-use",), ("gpu01",), "gpu01", quotes=("29500", "listener.py")),
    Case("connect-limit", ("net.connect-delayed",), quotes=("answered at attempt",), severity="warn"),
    Case("wrong-neighbour", ("net.wrong-neighbour",), quotes=("02:00:00:00:00:99", "gpu03's")),
    Case("wrong-route", ("net.wrong-route",), quotes=("10.77.0.3/32", "rejects")),
    Case("wrong-route", ("net.wrong-route",), parameters={"kind": "blackhole"}, quotes=("10.77.0.3/32",)),
    Case("wrong-route", ("net.wrong-route",), parameters={"kind": "gateway"}, quotes=("sends it to 10.77.0.254",)),
    # links
    Case("mtu-black-hole", ("net.mtu.black-hole",), quotes=("1400",)),
    Case("mtu-mismatch", ("net.mtu",), quotes=("9000", "1500"), severity="warn"),
    Case("mtu-mismatch", ("net.mtu",), parameters={"mtu": 1400}, quotes=("1400", "1500"), severity="warn"),
    Case("slow-link", ("net.slow",), options=(), quotes=("Mbit/s",)),
    Case("lossy-link", ("net.packet-loss",)),
    # interfaces
    Case("second-interface", ("net.wrong-interface",), quotes=("aux0",)),
    Case(
        "same-bridge-everywhere",
        ("net.wrong-interface",),
        EVERYONE,
        parameters={"socket_ifname": "^lo"},
        quotes=("docker0", "172.17.0.1"),
    ),
    Case(
        "same-bridge-everywhere",
        ("net.wrong-interface.unused-duplicate",),
        EVERYONE,
        quotes=("docker0", "172.17.0.1"),
        severity="info",
    ),
    Case(
        "same-bridge-everywhere",
        ("net.wrong-interface",),
        EVERYONE,
        parameters={"interface": "br-lxd"},
        quotes=("br-lxd", "172.17.0.1"),
    ),
    Case("wrong-nccl-conf", ("net.wrong-interface", "env.bad-nccl-var"), quotes=("/etc/nccl.conf", "eno1")),
    Case("wrong-environment", ("net.wrong-interface", "env.bad-nccl-var"), quotes=("NCCL_SOCKET_IFNAME", "eno1")),
    # the system
    Case("small-shm", ("sys.shm",), options=OWN, quotes=("64 MiB",)),
    Case("no-shm", ("sys.shm",), options=OWN),
    Case("low-memlock", ("ib.memlock", "sys.memlock"), options=OWN, quotes=("64 KiB",), severity="any"),
    Case("low-nofile", ("sys.nofile",), options=OWN, quotes=("256",)),
    Case("low-nofile", ("sys.nofile",), parameters={"files": 900}, options=OWN, quotes=("900",), severity="warn"),
    Case("disk-full", ("sys.disk-full",), options=OWN, quotes=("/tmp",)),
    Case("clock-offset", ("host.clock-offset",), parameters={"seconds": 445}, quotes=("is 44",), severity="warn"),
    # software and GPUs
    Case("other-torch", ("sw",), options=OWN, quotes=("2.6.0",)),
    Case("other-nccl", ("sw.nccl-version-mismatch",), options=OWN, quotes=("2.26.2", "2.28.9")),
    # Its device file is a GPU, for which the lab's torch was not built: that is told too, where the software is asked for.
    Case("hanging-nvidia-smi", ("gpu.driver",), options=(*OWN, "--skip", "software"), quotes=("nvidia-smi",)),
]

# Sights that look odd and break nothing. (A docker0 on every host: NCCL leaves it out by itself.)
HARMLESS = ["ping-dropped", "login-noise", "read-only-root", "same-bridge-everywhere", "ipv6-only"]


def check(lab: Lab, *options: str, timeout: float = 60, bundle: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of a check of all hosts, collectives left out (they have tests of their own)."""
    words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--format", "json", "--skip", "collectives"]
    words += ["--save", str(bundle)] if bundle else []
    done = lab.run([*words, *options], timeout=timeout)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def lies_beneath(id: str, parents: Sequence[str]) -> bool:
    """Whether a finding id is one of ``parents`` or beneath one."""
    return any(id == parent or id.startswith(parent + ".") for parent in parents)


def text_of(finding: dict[str, Any]) -> str:
    """Title, and each piece of evidence with where it was read."""
    evidence = [f"{item.get('source', '')}: {item['text']}" for item in finding["evidence"]]
    return "\n".join([finding["title"], *evidence])


def causes(report: dict[str, Any], *severities: str) -> list[dict[str, Any]]:
    """The findings of these severities that are not folded under another one."""
    told = [*report["findings"], *report["notes"]]
    return [item for item in told if item["severity"] in severities and not item.get("folded_under", "")]


@pytest.mark.alone
def test_a_clean_lab_has_no_findings(clean_run: CleanRun, lab: Lab) -> None:
    """What is worth knowing (which interface NCCL would choose) may be told; nothing is blamed.

    Collectives included: every rank on every host, over gloo where there is no GPU.
    """
    report = clean_run.report
    assert report["findings"] == []
    assert report["verdict"] == "healthy", report["unknown"]
    assert clean_run.done.returncode == HEALTHY
    assert report["reached"] == lab.hostnames
    assert {stage["name"]: stage["state"] for stage in report["stages"]}["collectives"] == "pass"


@pytest.mark.parametrize("case", [pytest.param(case, marks=case.marks, id=str(case)) for case in CASES])
def test_the_fault_is_named_and_its_host_kept_out(lab: Lab, case: Case, tmp_path: Path) -> None:
    """By check, and by preflight from what check saved."""
    missing = faults.all_faults()[case.fault].missing()
    if missing:
        pytest.skip("; ".join(missing))
    with lab.fault(case.fault, case.host, **case.parameters):
        code, report = check(lab, *case.options, bundle=tmp_path / "bundle")
    severities = ("fail", "warn", "info") if case.severity == "any" else (case.severity,)
    wanted = [item for item in causes(report, *severities) if lies_beneath(item["id"], case.ids)]
    told = [(item["id"], item["severity"], item["hosts"], item.get("folded_under", "")) for item in report["findings"]]
    assert wanted and len({item["id"] for item in wanted}) == 1, (told, report["unknown"])
    found = wanted[0]
    assert tuple(host for item in wanted for host in item["hosts"]) == case.guilty, told  # each host once
    for quote in case.quotes:
        assert quote in text_of(found)
    if case.severity == "fail":
        assert code == FAULTY
        assert report["findings"][0] == found, told  # the first thing that the report says
        assert {item["id"] for item in causes(report, "fail")} == {found["id"]}, told  # and the only cause
    else:
        assert causes(report, "fail") == [] or found["severity"] == "fail", told
    assert found["playbook"], f"no playbook for {found['id']}"
    assert playbooks.load(found["playbook"]).section("Fix now")
    the_gate_keeps_out(case, found, tmp_path)


def the_gate_keeps_out(case: Case, found: dict[str, Any], directory: Path) -> None:
    """Exit code, host files and JUnit of preflight for this fault."""
    bundle, job = directory / "bundle", ("--", "touch", str(directory / "ran"))
    strict = ["--strict"] if found["severity"] == "warn" else []  # without it warnings do not keep a host out
    run = gate.decide(bundle, directory / "gate", *strict, *job)
    guilty = list(case.guilty) if found["severity"] != "info" else []
    others = [host for host in EVERYONE if host not in guilty]
    bad = [host for line in run.bad for host in NodeSet(line)]
    assert (run.good, bad) == (others, guilty), run.out
    assert set(run.cases("error")) <= set(guilty), run.cases("error")
    if not guilty:
        assert run.code == gate.GO and (directory / "ran").exists()
        return
    told = run.cases("failure") if found["severity"] == "fail" else run.warned()
    assert sorted(told) == guilty and all(found["id"] in text for text in told.values()), told
    code = gate.WARNINGS if strict else gate.FAULTY
    assert run.code == code and "NO-GO" in run.out, run.out
    assert not (directory / "ran").exists()
    states = {run.report["decisions"][host]["state"] for host in guilty}
    assert states <= {"bad", "suspect"}
    if code == gate.WARNINGS:
        assert gate.decide(bundle, directory / "mild").good == list(EVERYONE)
    if others:  # enough of them are good: go, without the bad one
        some = gate.decide(bundle, directory / "go", *strict, "--min-hosts", str(len(others)))
        assert (some.code, some.good, some.bad) == (gate.GO, others, run.bad), some.out


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_breaks_nothing_is_no_finding(lab: Lab, fault: str, tmp_path: Path) -> None:
    with lab.fault(fault):
        code, report = check(lab, bundle=tmp_path / "bundle")
    assert causes(report, "fail", "warn") == []
    assert (code, report["verdict"]) == (HEALTHY, "healthy"), report["unknown"]
    run = gate.decide(tmp_path / "bundle", tmp_path / "gate", "--strict")
    assert (run.code, run.good, run.bad) == (gate.GO, list(EVERYONE), []), run.out


def while_a_host_vanishes(
    lab: Lab, words: Sequence[str], stage: str, cwd: Path | str = PROJECT
) -> subprocess.CompletedProcess[str]:
    """Run a command during which gpu02's cable is pulled: while it stands still, as it tells that this stage is over."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = lab.popen(words, cwd=cwd, **pipes)
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if f"] {stage} " in line:
                break
        assert f"] {stage} " in seen[-1], seen
        process.send_signal(signal.SIGSTOP)
        with lab.fault("host-vanishes", after_s=0.0):
            carrier = ["cat", "/sys/class/net/eth0/carrier"]
            machine.wait_for(lambda: lab.on("gpu02", carrier).stdout == "0\n", "the cable to be pulled")
            process.send_signal(signal.SIGCONT)
            out, err = process.communicate(timeout=120)
            # Cut off without a word, its agent has up to a minute to find out (test_promises.py); not waited for here.
            machine.end(left.pid for left in lab.processes("gpu02"))
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


@pytest.mark.parametrize("stage", ["host facts", "ports"])
def test_a_host_that_vanishes_in_the_middle(lab: Lab, tmp_path: Path, stage: str) -> None:
    words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--format", "json", "--skip", "collectives"]
    done = while_a_host_vanishes(lab, [*words, "--save", str(tmp_path / "bundle")], stage)
    report = json.loads(done.stdout)
    found = causes(report, "fail", "warn")
    assert [(item["id"], item["hosts"]) for item in found] == [("host.ssh-timeout", ["gpu02"])], found
    assert done.returncode == FAULTY and report["unknown"], report["unknown"]
    assert {host for gap in report["unknown"] for host in gap["hosts"]} == {"gpu02"}, report["unknown"]
    run = gate.decide(tmp_path / "bundle", tmp_path / "gate", "--min-hosts", "3")
    assert (run.code, run.good, run.bad) == (gate.GO, ["gpu01", "gpu03", "gpu04"], ["gpu02"]), run.out
    assert run.report["decisions"]["gpu02"]["state"] == "bad" and set(run.cases("failure")) == {"gpu02"}


ALL_STAGES = ["nccl-doctor", "check", "--format", "json"]


@pytest.mark.alone
def test_collectives_run_without_the_host_that_would_keep_them_waiting(lab: Lab) -> None:
    with lab.fault("port-dropped", "gpu03"):
        done = lab.run(
            [*ALL_STAGES, "--hosts", str(lab.hostfile), "--quick", "--stage", "ports", "--stage", "collectives"]
        )
    report = json.loads(done.stdout)
    assert done.returncode == FAULTY
    assert [(item["id"], item["hosts"]) for item in causes(report, "fail")] == [("net.firewall.dropped", ["gpu03"])]
    assert not [item for item in report["findings"] if item["id"].startswith("collectives.")]
    (measured,) = [item for item in report["notes"] if item["id"] == "collectives.measured"]
    assert measured["hosts"] == ["gpu01", "gpu02", "gpu04"]
    assert [(gap["what"], gap["hosts"]) for gap in report["unknown"]] == [("collectives", ["gpu03"])]


def test_collectives_alone_name_the_host_that_answers_nobody(lab: Lab) -> None:
    with lab.fault("port-dropped", "gpu02"):
        done = lab.run([*ALL_STAGES, "--hosts", str(lab.hostfile), "--stage", "collectives"])
    found = causes(json.loads(done.stdout), "fail")
    assert [(item["id"], item["hosts"]) for item in found] == [("collectives.stuck.process-group", ["gpu02"])]
    assert "SYN_SENT" in text_of(found[0])


def test_collectives_name_the_step_at_which_they_stick(lab: Lab) -> None:
    with lab.fault("mtu-black-hole", "gpu03"):  # everything works until the first large message
        done = lab.run([*ALL_STAGES, "--hosts", str(lab.hostfile), "--stage", "collectives"], timeout=150)
    found = causes(json.loads(done.stdout), "fail", "warn")
    assert done.returncode == FAULTY
    assert "gpu03" in {item["id"]: item["hosts"] for item in found}["collectives.stuck.measure"], found


# Transfers are timed only where that is the fault: over a link that loses them they take long.
PAIRS = [
    pytest.param(("slow-link", {}), ("slow-link", {}), ("net.slow",), marks=pytest.mark.alone),
    (("lossy-link", {}), ("lossy-link", {}), ("net.packet-loss",)),
    (("mtu-black-hole", {}), ("port-dropped", {}), ("net.mtu.black-hole", "net.firewall.dropped")),
    (("second-interface", {}), ("wrong-nccl-conf", {}), ("net.wrong-interface",)),
    (("second-interface", {}), ("port-dropped", {}), ("net.wrong-interface", "net.firewall.dropped")),
    (("sshd-down", {}), ("port-dropped", {}), ("host.ssh-refused", "net.firewall.dropped")),
    (("clock-offset", {}), ("small-shm", {"mebibytes": 32}), ("host.clock-offset", "sys.shm")),
    (("outbound-dropped", {}), ("port-dropped", {}), ("net.firewall.dropped",)),
]


@pytest.mark.parametrize(
    ("first", "second", "ids"), PAIRS, ids=lambda item: item[0] if isinstance(item[1:2], tuple) else None
)
def test_two_faults_at_once_are_laid_at_the_right_doors(
    lab: Lab, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]], ids: tuple[str, ...]
) -> None:
    """One fault on gpu02, one on gpu03: both hosts are named, no other is, and nothing else is found."""
    for name, _ in (first, second):
        if missing := faults.all_faults()[name].missing():
            pytest.skip("; ".join(missing))
    with lab.fault(first[0], "gpu02", **first[1]), lab.fault(second[0], "gpu03", **second[1]):
        _, report = check(lab, *(() if first[0] == "slow-link" else ("--quick",)), timeout=120)
    found = causes(report, "fail", "warn")
    told = [(item["id"], item["hosts"], item["title"]) for item in found]
    assert {host for item in found for host in item["hosts"]} == {"gpu02", "gpu03"}, told
    assert all(lies_beneath(item["id"], ids) for item in found), told
    assert all(any(lies_beneath(item["id"], (id,)) for item in found) for id in ids), told


def test_a_wrong_neighbour_and_a_wrong_route_of_ipv6_hosts(lab: Lab) -> None:
    with (
        lab.fault("ipv6-only"),
        lab.fault("wrong-neighbour", "gpu02", ipv6=True),
        lab.fault("wrong-route", "gpu04", peer="gpu01", ipv6=True),
    ):
        _, report = check(lab, "--quick")
    found = {item["id"]: item for item in causes(report, "fail", "warn")}
    assert {id: item["hosts"] for id, item in found.items()} == {
        "net.wrong-neighbour": ["gpu02"],
        "net.wrong-route": ["gpu04"],
    }, (list(found.values()), report["unknown"])
    assert "02:00:00:00:00:99" in text_of(found["net.wrong-neighbour"])
    assert "fd77::1/128" in text_of(found["net.wrong-route"])


STRANGE_PYTHONS = {
    "prints half a line": ("(sleep 0.3; printf 'no newline') & exec {python} \"$@\"", ()),
    "prints before it starts": ("echo 'module cuda/12 loaded'; echo '{{\"id\": 1}}'; exec {python} \"$@\"", ()),
    "knows no -c": ("echo 'usage: python3 [script]' >&2; exit 2", ("host.cut-off", "usage: python3 [script]")),
    "crashes": ("kill -SEGV $$", ("host.cut-off", "before the agent answered")),
}


@pytest.mark.parametrize("kind", STRANGE_PYTHONS)
def test_strange_pythons(lab: Lab, kind: str) -> None:
    script, expected = STRANGE_PYTHONS[kind]
    host = lab.host("gpu02")
    stub = host.bin / "python3"
    before = stub.read_text() if stub.exists() else None
    stub.write_text("#!/bin/sh\n" + script.format(python=host.python) + "\n")
    stub.chmod(0o755)
    try:
        _, report = check(lab, "--stage", "system", "--stage", "software")
    finally:
        stub.unlink()
        if before is not None:
            stub.write_text(before)
            stub.chmod(0o755)
    found = causes(report, "fail", "warn")
    if not expected:
        assert report["verdict"] == "healthy", (found, report["unknown"])
    else:
        id, quoted = expected
        assert [(item["id"], item["hosts"]) for item in found] == [(id, ["gpu02"])] and quoted in text_of(found[0])


def test_one_machine_under_two_names(lab: Lab, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"gpu01\ngpu03\n{lab.address('gpu03')}\n")
    done = lab.run(["nccl-doctor", "check", "--hosts", str(hostfile), "--quick", "--format", "json"])
    found = causes(json.loads(done.stdout), "fail", "warn")
    assert [(item["id"], item["hosts"]) for item in found] == [("host.named-twice", [lab.address("gpu03"), "gpu03"])]


@pytest.mark.alone
def test_a_flapping_link_is_named_and_nobody_else(lab: Lab) -> None:
    """A link that is down at the wrong moment takes more with it; of a few runs one meets it only up and down."""
    words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--quick", "--format", "json"]
    seen = []
    with lab.fault("link-flaps", every_s=0.4):
        for _ in range(6):
            found = json.loads(lab.run(words).stdout)["findings"]
            assert all("gpu02" in str(item) for item in found if item["severity"] == "fail"), found
            seen += [item["id"] for item in found if item["hosts"] == ["gpu02"]]
            if "net.link-flapping" in seen:
                return
    pytest.fail(f"not named in six runs: {seen}")


@pytest.mark.alone
def test_two_runs_at_once_both_measure_everything(lab: Lab) -> None:
    words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--quick", "--format", "json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    runs = [lab.popen(words, **pipes) for _ in range(2)]
    reports = [json.loads(run.communicate(timeout=60)[0]) for run in runs]
    told = [report["findings"] for report in reports]
    assert [(report["verdict"], report["unknown"]) for report in reports] == [("healthy", [])] * 2, told


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no Python that an ordinary user may run")
def test_an_ordinary_user_is_told_once_what_only_root_may_read(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(lab.ssh_config.read_text().replace("User root", "User someone"))
    words = ("--quick", "--ssh-config", str(config))
    code, report = check(lab, *words)
    assert (code, report["verdict"], report["unknown"]) == (HEALTHY, "healthy", [])
    files = [lab.host(name).etc / "nccl.conf" for name in lab.hostnames]
    try:
        for file in files:
            file.write_text("NCCL_DEBUG=INFO\n")
            file.chmod(0o600)
        done = lab.run(["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--stage", "interfaces", *words])
    finally:
        for file in files:
            file.unlink()
    told = " ".join(done.stdout.split())
    assert done.returncode == 4 and "but this user may not read everything" in told, told
    assert told.count("not permitted") == 1 and "settings in /etc/nccl.conf on gpu[01-04]: not permitted" in told


def test_every_fault_has_a_case() -> None:
    covered = {case.fault for case in CASES} | set(HARMLESS) | {"host-vanishes", "link-flaps"}
    assert covered == set(faults.all_faults())


def test_every_fault_of_the_table_is_documented() -> None:
    top = Path(__file__).resolve().parents[2]
    page = (top / "docs" / "lab.md").read_text()
    assert [name for name in faults.all_faults() if f"`{name}`" not in page] == []
    harmless = page[page.index(" break nothing") :].partition("\n\n")[0]
    assert [name for name in HARMLESS if f"`{name}`" not in harmless] == []
    assert f"and {len(faults.all_faults())} faults\n" in (top / "README.md").read_text()
