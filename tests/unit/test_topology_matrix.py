"""The topology matrix parser: every real sample and its facts, and any bytes at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from tests.tools.growth import is_linear

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
SAMPLES = sorted((SHARED / "corpus" / "topo").glob("*.txt"))


def _fact(matrix: Matrix, key: str) -> str | None:
    """What the matrix says under a key of an expectation file (``GPU0-NIC1``, ``GPU0.numa``, ``NIC legend NIC0``)."""
    if key.startswith("NIC legend "):
        return next(nic.device for nic in matrix.nics if nic.name == key.removeprefix("NIC legend "))
    links = matrix.links
    if key.startswith("p2p "):
        key, links = key.removeprefix("p2p "), matrix.p2p
    if "." in key:
        name, field = key.split(".")
        return getattr(next(gpu for gpu in matrix.gpus if gpu.name == name), field)
    a, b = key.split("-")
    return next(link.kind for link in links if (link.a, link.b) == (a, b))


@pytest.mark.skipif(not SAMPLES, reason="the shared topology samples are not here")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_real_samples(sample: Path) -> None:
    wanted = json.loads(sample.with_suffix(".json").read_text())
    matrix = parse(sample.read_bytes().decode("utf-8", "replace"))
    assert (len(matrix.gpus), len(matrix.nics)) == (wanted["gpus"], wanted["nics"])
    assert {key: _fact(matrix, key) for key in wanted["expect"]} == wanted["expect"]
    assert matrix.truncated == wanted.get("truncated", False), matrix.notes
    if "rows_present" in wanted:
        assert list(matrix.rows) == wanted["rows_present"]
        assert {link.a for link in matrix.links} <= set(wanted["rows_present"])


BLANKS = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    PXB     0-63    0               N/A
GPU1    NV12     X      SYS     64-127  1               N/A
NIC0    PXB     SYS      X
"""


def test_every_link_is_a_cell_that_was_read() -> None:
    matrix = parse(BLANKS)
    assert len(matrix.links) == 6
    assert not matrix.truncated
    cut = parse("\n".join(BLANKS.splitlines()[:2]))
    assert {link.a for link in cut.links} == {"GPU0"}
    assert cut.truncated
    assert "GPU1" in cut.notes[0]


@pytest.mark.parametrize(
    "kept",
    [
        lambda line, number: f"> {line}",
        lambda line, number: f"node17: {line}",
        lambda line, number: f"[1,0]<stdout>:{line}",
        lambda line, number: f"2026-11-{number + 9:02} 10:00:0{number % 10}.{number * 997} INFO {line}",
        lambda line, number: f"(Worker pid={number}) {line}",
        lambda line, number: "| " + " | ".join(line.split()) + " |" if number else "|   | GPU0 | GPU1 | NIC0 |",
        lambda line, number: f"[4m{line}[0m" if number == 0 else line,
        lambda line, number: line.replace(" ", ""),
    ],
)
def test_a_matrix_is_read_however_it_was_kept(kept: Callable[[str, int], str]) -> None:
    matrix = parse("\n".join(kept(line, number) for number, line in enumerate(BLANKS.splitlines())))
    assert (matrix.links, matrix.truncated) == (parse(BLANKS).links, False)


def test_what_is_glued_and_can_mean_two_things_is_not_told() -> None:
    glued = parse("GPU0GPU1CPU AffinityNUMA Affinity\nGPU0XNV120-310\nGPU1NV12X0-310\n")
    assert [(link.a, link.kind) for link in glued.links] == [("GPU1", "NV12")]  # NV12 and 0-31, or NV120 and -31
    assert {gpu.cpus for gpu in glued.gpus} <= {None, ""}
    assert glued.truncated


@pytest.mark.parametrize("end", range(1, 40))
def test_a_row_cut_anywhere_invents_nothing(end: int) -> None:
    whole = parse(BLANKS).kinds()
    head, row = BLANKS.splitlines()[0], BLANKS.splitlines()[2]
    try:
        cut = parse(f"{head}\n{BLANKS.splitlines()[1]}\n{row[:end]}")
    except TopologyError:
        return
    assert all(whole[link.a, link.b] == link.kind for link in cut.links)
    assert cut.truncated


def test_shifted_row_is_not_trusted() -> None:
    matrix = parse("        GPU0    GPU1    GPU2\nGPU0     X      NV4     NODE\nGPU1     X      NV4     NODE\n")
    assert matrix.truncated
    assert {link.a for link in matrix.links} == {"GPU0"}


def test_text_without_a_matrix_is_refused() -> None:
    with pytest.raises(TopologyError):
        parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


PIECES = st.sampled_from(
    ["GPU0", "GPU1", "NIC0", "mlx5_0", "X", "NV18", "PIX", "SYS", "SYSSYS", "\t", "  ", "\n", "CPU Affinity",
     "#", "0-3", "N/A", "X    = Self", "NIC0: mlx5_0", "\x1b[4m", "OK", "NUMA Affinity", "GPU NUMA ID", "\x00", "é"]
)  # fmt: skip


@example("GPU0\nGPU0\tNV0:")  # no X in its own column: a row that cannot be trusted
@given(st.one_of(st.text(), st.lists(PIECES, max_size=80).map("".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        matrix = parse(text)
    except TopologyError:
        return
    names = {gpu.name for gpu in matrix.gpus} | {nic.name for nic in matrix.nics}
    assert all(link.a in names and link.b in names and link.a != link.b for link in matrix.links)


@given(st.binary(max_size=400))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(TopologyError):
        parse(data.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    "piece",
    [
        "GPU0",
        "GPU0 X ",
        "X",
        "NV",
        "CPU ",
        " ",
        "\t",
        "\x1b[",
        "GPU0 X\n",
        "NIC0:",
        "mlx5_",
        "|",
        "> ",
        "a1:GPU0 X ",
        "[0",
        "1 ",
    ],
)
def test_linear_time(piece: str) -> None:

    def read(text: str) -> None:
        with contextlib.suppress(TopologyError):
            parse(text)

    assert is_linear(read, lambda length: "        GPU0    GPU1\nGPU0 X NV4\n" + piece * (length // len(piece)))
