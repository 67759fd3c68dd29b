"""Parsers of ibstat, ibv_devinfo, show_gids and nvidia-smi -q over real samples, and over any bytes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.agent.probes import kernel_log
from nccl_doctor.env import gid as gid_choice
from nccl_doctor.facts import infiniband_tools as tools
from nccl_doctor.facts.kernel_log import LogLine, xid_events
from nccl_doctor.facts.nvlink_xid import decode
from tests.tools import smi_query
from tests.tools.growth import is_linear

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
SAMPLES = sorted(path for path in (SHARED / "corpus" / "hw").glob("*.txt") if not path.name.startswith("ibstatus"))

IBSTAT = {"phys": "physical_state", "fw": "firmware_version", "type": "ca_type", "lid": "base_lid"}
DEVINFO = {"fw": "fw_ver", "guid": "node_guid", "part": "vendor_part_id", "lid": "port_lid"}


def _tool_fact(output: tools.ToolOutput, key: str, names: dict[str, str]) -> Any:
    if key in ("CAs", "devices", "hcas"):
        return len(output.devices)
    if key == "ports":
        return sum(len(device.ports) for device in output.devices)
    if key == "error_device":
        return output.failed
    name, *port, field = key.split(".")
    device = next(device for device in output.devices if device.name == name)
    wanted = names.get(field, field)
    ports = [one for one in device.ports if not port or one.number == int(port[0])]
    return device.fields.get(wanted, ports[0].fields.get(wanted) if ports else None)


def _best(gids: tuple[tools.ToolGid, ...]) -> int:
    entries = [gid_choice.GidEntry(gid.index, gid.gid, gid_choice.roce_version(gid.version)) for gid in gids]
    return gid_choice.choose(entries, ethernet=True)


def _gid_fact(found: dict[tuple[str, int], tuple[tools.ToolGid, ...]], key: str) -> Any:
    if key == "gids":
        return sum(len(gids) for gids in found.values())
    if key == "best_gid_index":
        return _best(next(iter(found.values())))
    name, *rest = key.split(".")
    gids = found[name, 1]
    if rest == ["first_index"]:
        return gids[0].index
    index, field = rest
    entry = next(gid for gid in gids if gid.index == int(index))
    return {"ver": entry.version, "ip": entry.ip, "netdev": entry.netdev}[field]


def _devinfo_port_fact(output: tools.ToolOutput, key: str) -> Any:
    port = output.devices[0].ports[0]
    if key == "best_gid_index":
        return _best(port.gids)
    if key.startswith("gid"):
        entry = next(gid for gid in port.gids if gid.index == int(key[3:]))
        return f"{entry.gid}, RoCE {entry.version}"
    return port.fields[key]


SMI = {
    "name": ("Product Name",),
    "addressing_mode": ("Addressing Mode",),
    "hw_power_brake": ("HW Power Brake Slowdown",),
    "hw_slowdown": ("HW Slowdown",),
    "hw_thermal": ("HW Thermal Slowdown",),
    "remapped_uncorrectable": ("Remapped Rows", "Uncorrectable Error"),
    "remap_pending": ("Remapped Rows", "Pending"),
    "remap_failure": ("Remapped Rows", "Remapping Failure Occurred"),
    "pstate": ("Performance State",),
    "idle": ("Idle",),
    "fabric_state": ("Fabric", "State"),
    "fabric_status": ("Fabric", "Status"),
    "single_bit": ("Single Bit ECC",),
    "double_bit": ("Double Bit ECC",),
    "pending": ("Pending Page Blacklist",),
}


def _smi_fact(query: smi_query.SmiQuery, key: str) -> Any:
    if key in ("gpus", "gpus_shown"):
        return query.attached if key == "gpus" else len(query.gpus)
    if key in ("driver", "cuda"):
        return getattr(query, key)
    if key == "process_mib":
        return query.gpus[0].processes[0]["Used GPU Memory"].removesuffix(" MiB")
    return query.gpus[0].get(*SMI[key])


def _facts(kind: str, text: str, keys: list[str]) -> dict[str, Any]:
    if kind == "ibstat":
        return {key: _tool_fact(tools.parse_ibstat(text), key, IBSTAT) for key in keys}
    if kind == "ibv_devinfo":
        return {key: _tool_fact(tools.parse_ibv_devinfo(text), key, DEVINFO) for key in keys}
    if kind.startswith("ibv_devinfo -v"):
        return {key: _devinfo_port_fact(tools.parse_ibv_devinfo(text), key) for key in keys}
    if kind == "show_gids":
        return {key: _gid_fact(tools.parse_show_gids(text), key) for key in keys}
    assert kind.startswith("nvidia-smi -q")
    return {key: _smi_fact(smi_query.parse(text), key) for key in keys}


@pytest.mark.skipif(not SAMPLES, reason="the shared hardware samples are not here")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_real_samples(sample: Path) -> None:
    wanted = json.loads(sample.with_suffix(".json").read_text())
    text = sample.read_bytes().decode("utf-8", "replace")
    assert _facts(wanted["kind"], text, list(wanted["expect"])) == wanted["expect"]


def _entries(*rows: tuple[int, str, int]) -> list[gid_choice.GidEntry]:
    return [gid_choice.GidEntry(*row) for row in rows]


LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe5d:4db8"
IPV4 = "0000:0000:0000:0000:0000:ffff:ac13:003c"


def test_gid_choice_walks_to_ipv4_roce_v2() -> None:
    usual = _entries((0, LINK_LOCAL, 1), (1, LINK_LOCAL, 2), (2, IPV4, 1), (3, IPV4, 2))
    assert gid_choice.choose(usual, ethernet=True) == 3
    assert gid_choice.choose(usual, ethernet=True, nccl_version=(2, 20, 5)) == 0
    assert gid_choice.choose(usual, ethernet=True, gid_index=1) == 1
    assert gid_choice.choose(usual, ethernet=False, gid_index=3) == 0
    assert gid_choice.choose(usual, ethernet=False, gid_index=3, nccl_version=(2, 21, 5)) == 3
    assert gid_choice.choose(usual[:2], ethernet=True) == 0


XID_LINES = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", 79, "0000:3b:00.0", False),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0", False),
    ("NVRM: Xid (PCI:0000:18:00 GPU-I:01): 94, pid=7194, name=python, Contained", 94, "0000:18:00.0", False),
    ("nvidia-nvswitch3: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress", 12028, "0000:a9:00.0", True),
]


@pytest.mark.parametrize(("line", "number", "bus_id", "switch"), XID_LINES)
def test_xid_lines(line: str, number: int, bus_id: str, switch: bool) -> None:
    (event,) = xid_events((LogLine(line, 12.5),))
    assert (event.number, event.bus_id, event.switch) == (number, bus_id, switch)


def test_one_sxid_is_told_once() -> None:
    """Its engine and its data stand on lines of their own, without the word that says how bad it is."""
    head = "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, "
    lines = (
        "Fatal, Link 37 LTSSM Fault Up",
        "Severity 1 Engine instance 37 Sub-engine instance 00",
        "Data {0x10000000}",
    )
    (event,) = xid_events(tuple(LogLine(head + line) for line in lines))
    assert event.line.text.endswith("LTSSM Fault Up")


PARSERS = [
    (tools.parse_ibstat, tools.ToolTextError),
    (tools.parse_ibv_devinfo, tools.ToolTextError),
    (tools.parse_show_gids, tools.ToolTextError),
]
_PIECES = (
    ["CA 'mlx5_0'", "Port 1:", "Port 99999999999999:", "\n", "\t", " : ", "State: Active", "hca_id: a", "port: 1"],
    ["port: ²", "GID[  0]: fe80::1, RoCE v2", "GPU 00000000:01:00.0", "Attached GPUs : 8", "Attached GPUs : ²"],
    ["Processes", "Process ID : 1", "    ", "ibpanic: x 'y'", "²"],
    ["mlx5_0 1 3 " + IPV4 + " 1.2.3.4 v2 eth0"],
)
PIECES = st.sampled_from([piece for row in _PIECES for piece in row])
LOG_PIECES = st.sampled_from(["NVRM: Xid (PCI:", "SXid (", "): ", "79", ",", "0000:3b:00", " "])


@pytest.mark.parametrize(("parser", "refusal"), PARSERS, ids=lambda item: getattr(item, "__name__", ""))
@given(text=st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=60).map("".join)))
@settings(max_examples=150, deadline=None)
def test_any_text_parses_or_is_refused(parser: Any, refusal: type[Exception], text: str) -> None:
    try:
        parser(text)
    except refusal:
        return


@given(text=st.one_of(st.text(max_size=200), st.lists(LOG_PIECES).map("".join)))
def test_any_log_line(text: str) -> None:
    xid_events((LogLine(text),))


REPEATED = {
    "ibstat": (tools.parse_ibstat, ["CA 'mlx5_0'\n", "Port 1:\n", "State: Active\n", "ibpanic: x '", " : "], "CA 'a'\n"),
    "ibv_devinfo": (tools.parse_ibv_devinfo, ["hca_id: a\n", "port: 1\n", "GID[  0]: fe80::1, ", ": "], "hca_id: a\n"),
    "show_gids": (tools.parse_show_gids, [f"mlx5_0 1 3 {IPV4} 1.2.3.4 v2 eth0\n", "1 ", ":0000"], ""),
    "Xid": (
        lambda text: xid_events(tuple(map(LogLine, text.splitlines()))),
        ["NVRM: Xid (PCI:0000:3b:00): 79, x\n", "Xid (", "NVRM: Xid (PCI:", "SXid (PCI:0000:", "0:"],
        "",
    ),
    "NVLink Xid": (
        lambda text: [decode(number, text, "NVIDIA H200") for number in (74, 149)],
        ["on link 1(", "0x0, ", "NETIR ", "Fatal ", "Link 0 (", "A"],
        "on link 14(0x0, ",
    ),
    "kernel record": (kernel_log.kmsg_record, ["6,1,1,-;", ",", ";", "x"], "6,1,"),
    "dmesg line": (kernel_log._dmesg_line, ["[", "1.0] ", " ", "."], "["),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "piece"), [(name, piece) for name, (_, pieces, _) in REPEATED.items() for piece in pieces]
)
def test_linear_time(name: str, piece: str) -> None:
    parser, _, head = REPEATED[name]

    def read(text: str) -> None:
        with contextlib.suppress(tools.ToolTextError):
            parser(text)

    assert is_linear(read, lambda length: head + piece * (length // len(piece)))
