"""``nccl-doctor topo``: FILE, standard input and bundles; what is uneven is said in words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typing_in import typed

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.topology_matrix import TopologyError, parse
from nccl_doctor.facts.topology_paths import (
    between,
    cross_socket,
    lost_nvlink,
    near_nics,
    signature,
    to_network,
    uneven,
)
from nccl_doctor.report import topology
from tests.hardware_kit.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def write(machine: Machine) -> Path:
    path = machine.directory / "topo.txt"
    path.write_text(machine.topology())
    return path


def test_file_and_standard_input_give_the_same(machine: Machine) -> None:
    path = write(machine)
    from_file = typed("topo", path, "--format", "json")
    from_input = typed("topo - --format json", input=machine.topology())
    assert from_file.exit_code == from_input.exit_code == 0
    assert json.loads(from_file.stdout) == json.loads(from_input.stdout)
    data = json.loads(from_file.stdout)
    assert data["gpus"][0] == {"name": "GPU0", "cpus": "0-55,112-167", "numa": "0", "gpu_numa_id": "N/A"}
    assert data["nics"][7] == {"name": "NIC7", "device": "mlx5_7"}
    assert {"a": "GPU0", "b": "NIC0", "kind": "PIX"} in data["links"]
    assert data["truncated"] is False
    assert data["uneven"] == []


def test_lost_nvlink_is_said(machine: Machine) -> None:
    machine.nvlink_lost = {2}
    done = typed("topo", write(machine))
    assert done.exit_code == 0
    assert "GPU2 has no NVLink, while all other GPUs are linked" in done.stdout
    assert "NVLink: 21 of 28 pairs (NV18)" in done.stdout


def test_gpu_without_a_nic_is_said(machine: Machine) -> None:
    del machine.hcas[6]
    done = typed("topo", write(machine))
    assert "no NIC beside GPU6, though other GPUs have one" in done.stdout
    assert "GPU6: no NIC beside it; over NVLink to GPU0 and its NIC0 (PXN)" in done.stdout


def test_cut_output_is_said_and_not_filled_in(machine: Machine) -> None:
    path = write(machine)
    path.write_text("\n".join(machine.topology().splitlines()[:5]))
    done = typed("topo", path, "--format", "json")
    data = json.loads(done.stdout)
    assert data["truncated"] is True and done.exit_code == 4
    assert {link["a"] for link in data["links"]} == {"GPU0", "GPU1", "GPU2", "GPU3"}
    assert "NVLink: all 22 pairs that can be read (NV18)" in typed("topo", path).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["/nonexistent"], 2, "No such file"),
        (["-"], 3, "no topology matrix"),
        (["-", "--format", "yaml"], 2, "is not one of text, json"),
        (["-", "--from", "x"], 2, "give FILE or --from"),
    ],
)
def test_bad_input(arguments: list[str], status: int, text: str) -> None:
    done = typed("topo", *arguments, input="hello\n")
    assert done.exit_code == status
    assert text in done.output


def test_hostile_text_cannot_drive_the_terminal() -> None:
    text = "\x1b]52;c;AAAA\x07\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU1\tNV1\t X \nNIC0: \x1b[2Jx\n"
    done = typed("topo -", input=text)
    assert "\x1b" not in done.output and "\x07" not in done.output


def test_bundle_alike_hosts_are_shown_once(machine: Machine) -> None:
    facts = machine.facts()
    probes = {name: msgspec.convert(result, ProbeResult) for name, result in facts.items()}
    reach = Reach(ReachOutcome.OK)
    hung = {"topology": ProbeResult(Outcome.TIMED_OUT, None, "no answer within 25 s")}
    told = {"gpu01": probes, "gpu02": probes, "gpu03": hung, "gpu04": hung}
    down = HostFacts("gpu05", Reach(ReachOutcome.NO_ROUTE, "no route to gpu05"))
    hosts = (*(HostFacts(name, reach, found) for name, found in told.items()), down)
    path = machine.directory / "b.ndb"
    bundles.write(Bundle(BUNDLE_SCHEMA, "t", "2026-11-21T00:00:00+00:00", Plan(stages=("topology",)), hosts), path)
    for arguments in (["--from", str(path)], [str(path)]):
        done = typed("topo", *arguments)
        assert "gpu[01-02]   8 GPUs, 8 NICs" in done.output
        assert "nvidia_peermem is loaded" in done.output
        assert "gpu[03-04]: no topology: topology: timed-out" in done.output
        assert "gpu05: no topology: not reached: no route to gpu05\n" in done.output
        assert done.exit_code == 4


def test_paths_of_nccl() -> None:
    matrix = parse(
        "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tPIX\tSYS\tPXB\t0-7\t0\nGPU1\tPIX\t X \tSYS\tPXB\t0-7\t0\nGPU2\tSYS\tSYS\t X \tSYS\t8-15\t1\n"
        "NIC0\tPXB\tPXB\tSYS\t X \n"
    )
    kinds = matrix.kinds()
    assert [between(kinds[pair]) for pair in (("GPU0", "GPU1"), ("GPU0", "GPU2"))] == ["PCIe P2P", "SHM"]
    assert between("PIX", "GNS") == "SHM"
    assert between("NV12", "OK") == "NVLink"
    assert near_nics(matrix)["GPU0"].kind == "PXB"
    assert "through host memory" in to_network(matrix, "GPU2")
    assert cross_socket(matrix) == [("GPU0", "GPU2"), ("GPU1", "GPU2")]
    assert lost_nvlink(matrix) == ()
    assert {item.topic for item in uneven(matrix)} == {"nic", "cross-socket"}


def test_numbering_of_nics_is_no_difference(machine: Machine) -> None:
    one = parse(machine.topology())
    machine.hcas.reverse()  # NIC0 is now the card beside GPU7
    other = parse(machine.topology())
    assert one.links != other.links
    assert signature(one) == signature(other)
    machine.nvlink_lost = {2}
    assert signature(parse(machine.topology())) != signature(one)


def test_from_takes_a_text_too(tmp_path: Path, machine: Machine) -> None:
    file = tmp_path / "ticket.txt"
    file.write_text(machine.topology())
    done = typed("topo", "--from", file)
    assert (done.exit_code, "8 GPUs, 8 NICs" in done.output) == (0, True), done.output
    file.write_text("hello")
    done = typed("topo", "--from", file)
    assert (done.exit_code, "no topology matrix" in done.output) == (3, True), done.output


def test_sentences_hang_under_their_labels(machine: Machine) -> None:
    console = Console(width=60, file=io.StringIO())
    topology.render(parse(machine.topology()), console, title="gpu01")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    words = text[text.index("to network") :].splitlines()
    assert all(len(line) <= 60 for line in words)
    assert words[1].startswith(" " * 13) and words[1].strip()


def rendered(text: str, width: int, terminal: bool = True) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None)
    topology.render(parse(text), console, title="gpu01")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_matrix_wider_than_the_terminal_leaves_out_the_nics_columns(machine: Machine) -> None:
    narrow, wide = rendered(machine.topology(), 80), rendered(machine.topology(), 140)
    assert all(len(line) <= 80 for line in narrow.splitlines())
    rows = {line.split()[0]: line.split() for line in narrow.splitlines() if line[:3] in ("GPU", "NIC")}
    assert rows["GPU0"][1:9] == ["·", *["NV18"] * 7] and rows["NIC1"][1:] == [
        "NODE",
        "PIX",
        "NODE",
        "NODE",
        *["SYS"] * 4,
        "mlx5_1",
    ]
    assert "not shown    how far NICs are from each other" in narrow and "not shown" not in wide
    assert "not shown" not in rendered(machine.topology(), 80, terminal=False)  # a file has no width


def test_nic_rows_that_are_cut_off_stand_in_the_gpus_rows(machine: Machine) -> None:
    text = "\n".join(machine.topology().splitlines()[:9])  # no row of a NIC
    rows = [line.split() for line in rendered(text, 80).splitlines() if line.startswith("NIC3")]
    assert rows == [["NIC3", "NODE", "NODE", "NODE", "PIX", "SYS", "SYS", "SYS", "SYS"]]


def test_a_card_without_a_bridge_is_uneven_and_no_loss() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
    assert [(item.topic, item.names) for item in uneven(parse(text)) if "nvlink" in item.topic] == [
        ("nvlink-part", ("GPU2",))
    ]
    assert "uneven       no NVLink on GPU2, though others have some" in rendered(text, 100)
    cut = text.splitlines()
    assert not [item for item in uneven(parse("\n".join([cut[0][:10], *cut[1:3]]))) if item.topic == "nvlink-part"]


def test_one_gpu_far_from_its_nic_is_not_uneven() -> None:
    text = rendered("\tGPU0\tNIC0\nGPU0\t X \tNODE\nNIC0\tNODE\t X \n", 100)
    assert "distance     the GPU does not have a NIC beside it (nearest: NODE)" in text and "uneven" not in text


def test_a_matrix_without_nvlink_says_that_it_may_be_the_mp_one() -> None:
    assert "topo -mp" in rendered("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n", 100)
    assert "topo -mp" not in rendered("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n", 100)


BASE = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV4\tPIX\t0-7\t0\tN/A\nGPU1\tNV4\t X \tSYS\t8-15\t1\tN/A\n"
BASE += "NIC0\tPIX\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
EVIL = st.sampled_from(
    ["\x1b[2J", "\x1b]52;c;AAAA\x07", "\x9b31m", "\x00", "\r", "\b", "\x85", "\u2028", "\u202e", "\x7f", "GPU2", "NV99"]
)


@given(places=st.lists(st.tuples(st.integers(0, len(BASE)), EVIL), max_size=6), width=st.integers(30, 200))
@settings(max_examples=80, deadline=None)
def test_whatever_stands_in_a_matrix_the_terminal_gets_plain_text(places: list[tuple[int, str]], width: int) -> None:
    text = BASE
    for place, evil in places:
        text = text[:place] + evil + text[place:]
    try:
        shown = rendered(text, width)
        document = topology.to_json(parse(text))
    except TopologyError:
        return
    assert not [mark for mark in shown if (ord(mark) < 32 and mark != "\n") or mark in "\x7f\x9b\x85\u2028\u202e"]
    assert set(document) >= {"gpus", "nics", "links", "truncated"}
    names = {one["name"] for one in document["gpus"] + document["nics"]}
    assert all({link["a"], link["b"]} <= names for link in document["links"])


def test_the_shape_of_the_json() -> None:
    for text in (BASE, BASE.replace("\tGPU NUMA ID", "").replace("\tN/A", "")):
        document = topology.to_json(parse(text))
        extra = {"gpu_numa_id"} if "GPU NUMA ID" in text else set()
        assert all(set(one) == {"name", "cpus", "numa"} | extra for one in document["gpus"])
        assert all(set(one) == {"name", "device"} for one in document["nics"])
        assert all(set(one) == {"a", "b", "kind"} for one in document["links"])
        assert document["truncated"] in (True, False)


def test_of_a_gpu_whose_row_is_missing_no_distance_to_a_nic_is_told(tmp_path: Path) -> None:
    (tmp_path / "cut.txt").write_text("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tSYS\tPHB\n")
    text = typed("topo", tmp_path / "cut.txt").output
    assert "no NIC beside GPU0 (nearest: PHB)" in text and "no GPU has" not in text
