"""Whole hosts: their environment and nccl.conf from a bundle, disagreement, and the rules of `check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.env import examine, hca, hosts
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import engine, environment

VARIABLES = {"NCCL_DEBUG": "WARN", "PATH": "/usr/bin", "NCCL_API_KEY": "hunter2"}


def interfaces(*conf: tuple[str, str, list[str]]) -> dict[str, Any]:
    return {
        "addresses": [
            {"name": "lo", "family": "inet", "address": "127.0.0.1", "prefix": 8, "loopback": True},
            {"name": "eth0", "family": "inet", "address": "10.0.0.1", "prefix": 24},
        ],
        "conf_files": [
            {
                "role": role,
                "path": path,
                "outcome": "ok",
                "lines": [{"line": number, "text": text} for number, text in enumerate(lines, start=1)],
            }
            for role, path, lines in conf
        ],
    }


def host(name: str, variables: dict[str, str] | None = None, **probes: Any) -> HostFacts:
    data = {"environment": {"variables": VARIABLES if variables is None else variables}, **probes}
    results = {
        key.replace("_", "-"): value if isinstance(value, ProbeResult) else ProbeResult(Outcome.OK, value)
        for key, value in data.items()
    }
    return HostFacts(name, Reach(ReachOutcome.OK), results)


def bundle(*of: HostFacts, **plan: Any) -> Bundle:
    return Bundle(1, "test", "2026-01-01T00:00:00Z", Plan(stages=engine.STAGES, **plan), of)


def checked(facts: Bundle) -> dict[str, engine.RuleResult]:
    rules = [rule for rule in engine.all_rules() if rule.name.startswith("environment.")]
    return {result.rule: result for result in engine.run(facts, rules)}


def test_equal_hosts_are_told_once() -> None:
    spoilt = {"NCCL_SOCKET_IFNMAE": "eth0"}
    result = examine.examine(bundle=bundle(*(host(f"n{number}", spoilt) for number in range(50))))
    (found,) = result.remarks
    assert len(found.finding.hosts) == 50 and len(found.finding.evidence) == 3
    assert result.looked_at == tuple(sorted(f"n{number}" for number in range(50)))


def test_secrets_are_not_repeated() -> None:
    result = examine.examine(bundle=bundle(host("a")))
    assert "hunter2" not in str(result)


def test_hosts_that_disagree() -> None:
    facts = bundle(
        host("a", {"NCCL_ALGO": "Ring"}),
        host("b", {"NCCL_ALGO": "Ring,Tree"}),
        host("c", {"NCCL_ALGO": "Ring", "NCCL_CROSS_NIC": "0"}),
    )
    found = {item.assignment.name: item.finding for item in hosts.of_facts(facts).remarks}
    assert found["NCCL_ALGO"].severity is Severity.FAIL and found["NCCL_ALGO"].hosts == ("b",)
    assert found["NCCL_CROSS_NIC"].severity is Severity.WARN and found["NCCL_CROSS_NIC"].hosts == ("c",)


def test_what_may_differ_is_no_disagreement() -> None:
    facts = bundle(host("a", {"NCCL_SOCKET_IFNAME": "=eth0"}), host("b", {"NCCL_SOCKET_IFNAME": "=ens5"}))
    assert not hosts.of_facts(facts).remarks


def test_the_environment_beats_the_file_and_the_user_s_file_beats_the_system_s() -> None:
    conf = interfaces(
        ("system", "/etc/nccl.conf", ["NCCL_CROSS_NIC=2", "NCCL_NET=IB"]),
        ("home", "/root/.nccl.conf", ["NCCL_NET=Socket"]),
        ("passwd-home", "/root/.nccl.conf", ["NCCL_NET=Socket"]),
    )
    result = examine.examine(bundle=bundle(host("a", {"NCCL_CROSS_NIC": "1"}, interfaces=conf)))
    titles = [item.finding.title for item in result.remarks if item.finding.id.endswith("source-order")]
    assert len(titles) == 2
    assert any("NCCL_CROSS_NIC=2 of /etc/nccl.conf loses against 1" in title for title in titles)
    assert any("NCCL_NET=IB of /etc/nccl.conf loses against Socket of /root/.nccl.conf" in title for title in titles)


def test_a_host_without_its_environment_is_a_problem_not_a_pass() -> None:
    missing = HostFacts("b", Reach(ReachOutcome.OK), {"environment": ProbeResult(Outcome.TIMED_OUT, None, "hung")})
    unreached = HostFacts("c", Reach(ReachOutcome.REFUSED, "refused"))
    result = examine.examine(bundle=bundle(host("a"), missing, unreached))
    assert [problem.file for problem in result.problems] == ["b", "c"]
    assert result.exit_code(strict=False) == 4


def test_check_passes_clean_hosts_and_knows_what_it_does_not_know() -> None:
    missing = HostFacts("b", Reach(ReachOutcome.OK), {"environment": ProbeResult(Outcome.TIMED_OUT, None, "hung")})
    results = checked(bundle(host("a", interfaces=interfaces()), missing))
    for result in results.values():
        assert "a" in result.passed and "b" not in result.passed
        assert any("b" in gap.hosts for gap in result.unknown)


def test_where_nccl_conf_was_not_read_the_variables_have_not_passed() -> None:
    """What the environment sets is told all the same."""
    for result in checked(bundle(host("a", {"NCCL_DEBUG": "ERROR"}), host("b", interfaces=interfaces()))).values():
        assert "a" not in result.passed and [gap.hosts for gap in result.unknown] == [("a",)]
        assert result.findings


def test_what_has_no_effect_is_a_warning_in_check() -> None:
    spoilt = {"NCCL_SOCKET_IFNMAE": "x", "NCCL_TIMEOUT": "1", "NCCL_DEBUG": "ERROR", "NCCL_IB_TIMEOUT": "20"}
    found = checked(bundle(host("a", spoilt)))["environment.variables"].findings
    assert {item.severity for item in found} == {Severity.WARN} and len(found) == 3


def test_what_ends_a_job_fails_in_check() -> None:
    found = checked(bundle(host("a", {"NCCL_ALGO": "Rign"}), nccl_version="2.28.9"))["environment.variables"].findings
    assert [(item.id, item.severity) for item in found] == [("env.bad-nccl-var.invalid-value.fatal", Severity.FAIL)]
    found = checked(bundle(host("a", {"NCCL_ALGO": "Rign"}), nccl_version="2.18.5"))["environment.variables"].findings
    assert [(item.id, item.severity) for item in found] == [("env.bad-nccl-var.invalid-value", Severity.WARN)]


def port(state: str) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": "mlx5_0",
                "ports": [{"port": 1, "state": state, "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}],
            }
        ]
    }


def test_infiniband_switched_off_beside_an_active_port_fails() -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    (found,) = checked(bundle(host("a", off, infiniband=port("4: ACTIVE"))))["environment.variables"].findings
    assert found.severity is Severity.FAIL and "400 Gb/sec" in found.evidence[1].text
    (found,) = checked(bundle(host("a", off, infiniband=port("1: DOWN"))))["environment.variables"].findings
    assert found.severity is Severity.WARN
    (found,) = checked(bundle(host("a", off)))["environment.variables"].findings
    assert found.severity is Severity.WARN
    other = host("a", {"NCCL_P2P_DISABLE": "1"}, infiniband=port("4: ACTIVE"))
    (found,) = checked(bundle(other))["environment.variables"].findings
    assert found.severity is Severity.WARN and "mlx5_0" not in str(found.evidence)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("", True), ("^", False), ("mlx5", True), ("=mlx5", False), ("=mlx5_0", True), ("mlx5_0:1", True),
        ("mlx5_0:2", False), ("^mlx5_0:1", False), ("^mlx5_0:2", True), ("^=mlx5", True),
    ],
)  # fmt: skip
def test_what_a_list_of_hcas_keeps(value: str, kept: bool) -> None:
    assert hca.parse(value).matches("mlx5_0", 1) is kept


@pytest.mark.parametrize(("value", "also"), [("eth0", []), ("eth", []), ("eth1", ["eth10"]), ("=eth1", [])])
def test_a_name_that_is_a_prefix_of_another_takes_both(value: str, also: list[str]) -> None:
    facts = interfaces()
    facts["addresses"] += [
        {"name": name, "family": "inet", "address": f"10.0.{number}.1", "prefix": 24}
        for number, name in enumerate(("eth1", "eth10"), 1)
    ]
    found = examine.examine(bundle=bundle(host("a", {"NCCL_SOCKET_IFNAME": value}, interfaces=facts))).remarks
    titles = [item.finding.title for item in found if item.finding.id.endswith("ifname-prefix")]
    assert titles == [f"NCCL_SOCKET_IFNAME={value}: {value} also takes {name}" for name in also]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL_SOCKET_IFNAME=eno1", "NCCL_SOCKET_IFNAME=eno1 matches no interface of a,b (lo, eth0)"),
        ("NCCL_SOCKET_IFNAME=^lo,eth", "NCCL_SOCKET_IFNAME=^lo,eth matches no interface of a,b (lo, eth0)"),
        ("GLOO_SOCKET_IFNAME=eth", "GLOO_SOCKET_IFNAME=eth matches no interface of a,b (lo, eth0)"),
        ("NCCL_IB_HCA=mlx5_7", "NCCL_IB_HCA=mlx5_7 matches no HCA of a (mlx5_0)"),  # b has none
        *(
            (fits, "")
            for fits in ("NCCL_SOCKET_IFNAME=eth", "GLOO_SOCKET_IFNAME=eth0", "NCCL_IB_HCA=mlx5", "NCCL_DEBUG=WARN")
        ),
    ],
)
def test_a_list_in_a_file_is_matched_against_the_hosts_beside_it(tmp_path: Path, line: str, told: str) -> None:
    (script := tmp_path / "train.sh").write_text(f"export {line}\n")
    (pod := tmp_path / "pod.yaml").write_text(f"env:\n- name: {line.replace('=', chr(10) + '  value: ', 1)}\n")
    fleet = bundle(
        host("a", {}, interfaces=interfaces(), infiniband=port("4: ACTIVE")), host("b", {}, interfaces=interfaces())
    )
    for file, severity in ((script, Severity.FAIL), (pod, Severity.WARN)):  # a pod has interfaces of its own
        found = [item.finding for item in examine.examine([str(file)], bundle=fleet).remarks]
        fits = [item for item in found if item.id.endswith("ifname-no-match")]
        assert [(item.severity, item.title.partition(": ")[0]) for item in fits] == [(severity, told)] * bool(told)


def test_the_hca_list_is_matched_against_the_host_s_devices() -> None:
    facts = bundle(host("a", {"NCCL_IB_HCA": "=mlx5_7"}, infiniband=port("4: ACTIVE")))
    (found,) = checked(facts)["environment.variables"].findings
    assert found.id.endswith("ifname-no-match") and "mlx5_0" in found.title


def test_the_job_environment_is_judged_too() -> None:
    facts = bundle(host("a", {}), env={"NCCL_TIMEOUT": "1800"})
    (found,) = checked(facts)["environment.variables"].findings
    assert found.id.endswith("timeout-does-nothing") and found.evidence[0].source == "job environment"


@pytest.mark.parametrize("probe", ["environment"])
def test_removing_the_fact_never_leaves_a_pass(probe: str) -> None:
    facts = bundle(host("a"), host("b"))
    spoilt = Bundle(1, "t", "x", facts.plan, tuple(HostFacts(h.name, h.reach, {}) for h in facts.hosts))
    assert all(not result.passed for result in checked(spoilt).values())
    assert environment.variables.__doc__
