"""Against what real NCCL libraries did: nccl.conf parsing, and lint of NCCL_SOCKET_IFNAME where they failed or took lo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.env import lint, sources
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.extract import conf
from nccl_doctor.env.lint import Devices
from nccl_doctor.findings.model import Severity

ROOT = Path(__file__).resolve().parents[3]
VECTORS = Path(os.environ.get("NCCL_DOCTOR_SHARED", ROOT.parent / "shared")) / "facts" / "vectors"

pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="the recorded library runs (../shared/facts) are not here")


def load(name: str) -> list[dict[str, Any]]:
    path = VECTORS / name
    return json.loads(path.read_text()) if path.is_file() else []


@pytest.mark.parametrize("case", load("conf_file_experiment.json"), ids=lambda case: case["case"])
@pytest.mark.parametrize("release", ["2.30.7", "2.32.3"])
def test_nccl_conf(case: dict[str, Any], release: str) -> None:
    """The value our reader finds leads to what the library did: =eth0 to eth0, none to ib0, a spoilt one to failure."""
    layers = [("environment", sources.of_environment(case["env"]))]
    text = case["nccl_conf_file"] if case["nccl_conf_file"] is not None else case["home_conf"]
    layers.append(("conf", tuple(conf.read(text, "nccl.conf"))))
    winner = sources.effective(layers).get("NCCL_SOCKET_IFNAME")
    value = winner.value if winner else None
    expected = {None: "ib0", "=eth0": "eth0", "=eth1": "eth1"}.get(value, "Bootstrap : no socket interface found")
    assert case["result"][release].startswith(expected)
    if expected.startswith("Bootstrap"):
        found = lint.lint([winner], release) if winner else []
        assert any(item.severity is Severity.FAIL for item in found)


def ifname_cases() -> list[dict[str, Any]]:
    return [case for case in load("socket_if_experiment.json") if set(case["env"]) == {"NCCL_SOCKET_IFNAME"}]


@pytest.mark.parametrize("case", ifname_cases(), ids=lambda case: repr(case["env"]["NCCL_SOCKET_IFNAME"]))
def test_interface_lists_that_failed_or_took_lo_are_found(case: dict[str, Any]) -> None:
    value = case["env"]["NCCL_SOCKET_IFNAME"]
    names = tuple(dict.fromkeys(entry.split("/")[0] for entry in case["interfaces"] if entry.endswith("/R")))
    item = Assignment("NCCL_SOCKET_IFNAME", value, how=How.PROCESS, host="a")
    found = lint.lint([item], "2.30.7", devices={"a": Devices(interfaces=names)})
    bad = [one.id.rsplit(".", 1)[-1] for one in found if one.severity is not Severity.INFO]
    did = case["result"]["2.30.7"]
    if did["using"] is None:
        assert set(bad) & {"ifname-no-match", "ifname-blank"}
    elif did["using"].startswith("lo:"):
        assert set(bad) & {"ifname-admits-loopback", "ifname-loopback"}
    else:
        assert "ifname-no-match" not in bad and "ifname-admits-loopback" not in bad
