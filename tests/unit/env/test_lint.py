"""What lint says of one value, or of a few together: the truth of it at each release, and nothing on what is right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nccl_doctor.env import lint, number
from nccl_doctor.env.assignments import Assignment, How, is_ours


def said(variables: Mapping[str, str | None], nccl: str = "", torch: str = "", how: How = How.EXPORT) -> list[str]:
    """The findings on variables that are set together, as ``severity name``."""
    items = [
        Assignment(name, value, "job.sh", line, how, f"export {name}={value}", "job.sh")
        for line, (name, value) in enumerate(variables.items(), start=1)
    ]
    found = lint.lint(items, nccl, torch)
    return [f"{item.severity.value} {item.id.removeprefix(f'{lint.AREA}.')}" for item in found]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (" 4 ", True),
        ("0x10", True),
        ("-1", True),
        ("4M", False),
        ("08", False),
        ("4 5", False),
        ("", False),
        ("-", False),
    ],
)
def test_a_number_is_read_to_its_end(text: str, whole: bool) -> None:
    assert number.is_number(text) is whole


@pytest.mark.parametrize(
    ("name", "value", "nccl", "expected"),
    [
        # 0 is the verbs value for no limit, and the user guide lists it: no slip, but not for production
        ("NCCL_IB_TIMEOUT", "0", "2.28.9", ["warn leftover-debugging"]),
        ("NCCL_IB_TIMEOUT", "32", "2.28.9", ["fail invalid-value"]),
        ("NCCL_BUFFSIZE", "9" * 20, "2.28.9", ["fail invalid-value"]),
        ("NCCL_ALGO", "Ring,Collnet", "2.13.4", ["warn pinned"]),
        ("NCCL_ALGO", "Ring,Collnet", "2.21.5", ["fail invalid-value"]),
        ("NCCL_ALGO", "Ring,Collnet", "2.24.3", ["fail invalid-value.fatal"]),
        ("NCCL_ALGO", "Ring,PAT", "2.22.3", ["fail invalid-value"]),
        ("NCCL_ALGO", "Ring,PAT", "2.23.4", ["warn pinned"]),
        ("NCCL_ALGO", "allreduce:tree;broadcast:ring", "2.24.3", ["warn pinned"]),
        ("NCCL_ALGO", "all_reduce:tree", "2.24.3", ["fail invalid-value.fatal"]),
        ("NCCL_P2P_LEVEL", "C2C", "2.25.1", ["fail invalid-value"]),
        ("NCCL_P2P_LEVEL", "C2C", "2.26.2", ["warn pinned"]),
        # what NIC fusion knows of the path types; anything else switches it off
        ("NCCL_NET_MERGE_LEVEL", "NVL", "2.28.9", ["fail invalid-value"]),
        ("NCCL_NET_MERGE_LEVEL", "PHB", "2.28.9", ["warn pinned"]),
        ("NCCL_CTA_POLICY", "efficiency|zero", "2.29.7", ["warn pinned"]),
        ("NCCL_CTA_POLICY", "FAST", "2.29.7", ["fail invalid-value"]),
        ("NCCL_LAUNCH_MODE", "parallel", "2.28.9", ["info default-restated"]),
        # the guide: any number from 1 on; NCCL takes as many as it has
        ("NCCL_MAX_NCHANNELS", "128", "2.28.9", ["warn pinned", "info renamed"]),
        ("NCCL_MIN_NCHANNELS", "112", "2.28.9", ["warn pinned", "info renamed"]),
        ("NCCL_IGNORE_DISABLED_P2P", "1", "2.28.9", ["warn leftover-debugging"]),
        ("NCCL_AVOID_RECORD_STREAMS", "1", "", ["warn read-by-nobody"]),
        # aws-ofi-nccl takes the name it is called by
        ("NCCL_NET", "ofi", "", []),
        ("NCCL_NET", "AWS Libfabric", "", []),
        ("NCCL_NET", "efa", "", ["fail invalid-value.fatal"]),
        ("OFI_NCCL_FORCE_PRODUCT_NAME", "p5.48xlarge", "", []),
    ],
)
def test_values_by_release(name: str, value: str, nccl: str, expected: list[str]) -> None:
    assert said({name: value}, nccl) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TORCH_NCCL_BLOCKING_WAIT", "", ["fail invalid-value.fatal"]),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "", ["fail invalid-value.fatal"]),
        ("TORCH_DISTRIBUTED_DEBUG", "", ["fail invalid-value.fatal"]),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "", ["info renamed"]),
        ("TORCH_SHOW_CPP_STACKTRACES", "true", ["fail invalid-value"]),
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", "true", ["fail invalid-value"]),
        ("TORCH_NCCL_ENABLE_TIMING", "true", []),
        ("NCCL_DEBUG", "", []),
        ("NCCL_ALGO", "", []),
    ],
)
def test_empty_values_and_switches_of_pytorch(name: str, value: str, expected: list[str]) -> None:
    """PyTorch's getCvarBool and getCvarInt raise at an empty text; NCCL takes it for not set."""
    assert said({name: value}, torch="2.9.0") == expected


@pytest.mark.parametrize(
    ("torch", "others", "expected"),
    [
        ("2.14.1", {}, ["warn leftover-debugging"]),
        ("2.15.0", {}, ["info removed"]),
        ("2.15.0", {"TORCH_DIST_USE_NCCL2": "1"}, ["info removed"]),
        ("2.15.0", {"TORCH_DIST_USE_NCCL2": "0"}, ["warn leftover-debugging"]),
    ],
)
def test_what_only_the_legacy_backend_of_pytorch_reads(torch: str, others: dict[str, str], expected: list[str]) -> None:
    assert said({"TORCH_NCCL_DESYNC_DEBUG": "1", **others}, torch=torch) == expected


@pytest.mark.parametrize(
    ("name", "how", "expected"),
    [
        # near a name that nobody reads either: what that one is told
        ("NCCL_SOCKET_TIMEOUT_MS", How.EXPORT, ["fail timeout-does-nothing"]),
        ("NCCL_IB_DEVICE", How.EXPORT, ["warn read-by-nobody"]),
        ("NCCL_SOCKET_IFNAMES", How.EXPORT, ["fail misspelled"]),
        # a script's own variable: it reaches no job, and means nothing to one
        ("NCCL_TIMEOUT", How.PLAIN, []),
        ("NCCL_USE_SNAP", How.EXPORT, ["warn read-by-nobody"]),
        ("NCCL_STAGING_BUFFER_SIZE", How.EXPORT, []),
    ],
)
def test_names(name: str, how: How, expected: list[str]) -> None:
    assert said({name: "1800"}, how=how) == expected


@pytest.mark.parametrize(
    "name", ["NCCL_version", "NCCL_INIT_SCRIPT", "NCCL_CONTAINER", "NCCL_TESTS_EXE", "NCCL_DEBUG_FLAGS"]
)
def test_names_of_scripts_are_nobody_s_business(name: str) -> None:
    assert not is_ours(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_IB_HCA", "ib", []),  # the prefix of ibp0 and its sisters
        ("NCCL_IB_HCA", "ib0", ["fail hca-names-interface"]),
        ("NCCL_IB_HCA", "mlx5", []),  # the prefix of all of them
        ("NCCL_IB_HCA", "mlx5_1", ["info ifname-prefix"]),
        ("NCCL_IB_HCA", "=mlx5_0,", ["warn ifname-blank"]),
        ("NCCL_DEBUG_FILE", "/shared/nccl.log", ["warn shared-log"]),
        ("NCCL_DEBUG_FILE", "/shared/nccl.%h.log", ["warn shared-log"]),
        ("NCCL_DEBUG_FILE", "/shared/nccl.%h.%p.log", []),
        ("NCCL_DEBUG_FILE", "/dev/stderr", []),
        ("NCCL_IB_TIMEOUT", "16", ["warn outdated-value"]),
        ("NCCL_IB_TIMEOUT", "18", ["info default-restated"]),
        ("NCCL_IB_TIMEOUT", "22", []),
        ("NCCL_IB_TIMEOUT", "10", []),  # never meant to raise it
    ],
)
def test_lists_logs_and_limits(name: str, value: str, expected: list[str]) -> None:
    assert said({name: value}, "2.28.9") == expected


def test_in_a_container_there_is_seldom_a_docker0() -> None:
    assert said({"NCCL_SOCKET_IFNAME": "^lo"}) == ["warn ifname-admits-docker"]
    assert said({"NCCL_SOCKET_IFNAME": "^lo"}, how=How.YAML) == ["info ifname-admits-docker"]


@pytest.mark.parametrize(
    ("level", "subsystems", "expected"),
    [
        ("WARN", "ALL", ["info contradiction"]),
        ("INFO", "ALL", ["warn leftover-debugging"]),
        ("INFO", "INIT,coll", ["warn leftover-debugging"]),
        ("INFO", "^COLL", []),
        ("INFO", "INIT,NET", []),
    ],
)
def test_subsystems_and_level(level: str, subsystems: str, expected: list[str]) -> None:
    assert said({"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsystems}) == expected
