"""NVLink Xids: the registers of their lines decoded by NVIDIA's tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.facts.nvlink_xid import _WEIGHT, decode, tables

H100 = "NVIDIA H100 80GB HBM3"
XID74 = "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14({})"
NVLINK5 = "NVRM: Xid (PCI:0008:01:00): {}, {} {} XC0 i0 Link 08 ({} {} 0x00000000 0x00000000 0x00000000 0x00000000)"


def registers(**values: int) -> str:
    return XID74.format(", ".join(hex(values.get(f"r{index}", 0)) for index in range(1, 8)))


@pytest.mark.parametrize(
    ("values", "quote", "do"),
    [
        ({"r3": 0x10000}, "register 3 bit 16: repeated: run the field diagnostic", "reset-gpu"),
        ({"r1": 1 << 21 | 1 << 22}, "register 1 bits 21, 22: weak signal", "reset-gpu"),
        ({"r1": 1 << 8}, "mechanical connection", "reset-gpu"),
        ({"r1": 1 | 1 << 30}, "harmless", "ignore"),
        ({"r5": 1 << 20}, "threshold", "ignore"),
        ({"r5": 1 << 20, "r1": 1 << 4}, "ECC or parity", "reset-gpu"),
        ({"r4": 1 << 18}, "the fabric needs a reset", "reset-gpu"),
        ({"r1": 1 << 31}, "register 1 bit 31: not in NVIDIA's table", "reset-gpu"),
        ({"r2": 5}, None, None),  # the second register holds nothing on Hopper
    ],
)
def test_xid_74_on_hopper(values: dict[str, int], quote: str | None, do: str | None) -> None:
    found = decode(74, registers(**values), H100)
    assert found is not None and (found.link, found.do) == (14, do)
    assert quote is None or any(quote in words for words in found.words), found.words


@pytest.mark.parametrize("model", ["NVIDIA A100-SXM4-80GB", "NVIDIA B200", None])
def test_xid_74_of_other_models_is_not_decoded(model: str | None) -> None:
    assert decode(74, registers(r1=1), model) is None


@pytest.mark.parametrize(
    ("number", "unit", "word", "info", "status", "quote", "do"),
    [
        (149, "NETIR_LINK_EVT", "Fatal", 0x004505C6, 0, "link down, alignment lost", "reset-gpu"),
        (149, "NETIR_LINK_EVT", "Fatal", 0x025001C6, 0, "the peer was reset", "reset-gpu"),
        (149, "NETIR_LINK_DOWN", "Fatal", 0x02600011, 0, "reset without power cycle", "ignore"),
        (149, "NETIR_LINK_EVT", "Fatal", 0x016415C6, 0, "taken down by a management command", "reset-gpu"),
        (149, "NETIR_LINK_DOWN", "Fatal", 0x03F00011, 0, "reason 63 (not in NVIDIA's table)", None),
        (149, "NETIR_BER_EVENT", "Nonfatal", 0x13, 2, "many bit errors", "ignore"),
        (149, "NETIR_MFDE_EVENT", "Fatal", 0x14, 4, "status 0x4", "reset-gpu"),
        (149, "NETIR", "Fatal", 0x000FE406, 0, "follows another error", "reset-gpu"),
        (144, "SAW_MVB", "Fatal", 0x21, 0x10, "error status 0x10", "reset-gpu"),
        (145, "RLW_REMAP", "Nonfatal", 0x82, 0x8, "error status 0x8", "restart-job"),
        (145, "RLW_REMAP", "Fatal", 0x82, 0x48, "error status 0x48", "reset-gpu"),
        (145, "RLW_RXPIPE", "Nonfatal", 0xC2, 0x1, "error status 0x1", "ignore"),
        (145, "RLW_RXPIPE", "Fatal", 0x4C2, 0x1, "error status 0x1", "reset-gpu"),  # promoted, before R575
        (145, "RLW_RXPIPE", "Nonfatal", 0x06, 0x1, "error status 0x1", "ignore"),
        (145, "RLW_RXPIPE", "Fatal", 0x86, 0x1, "error status 0x1", "reset-gpu"),  # promoted, since R575
        (146, "TLW_RX_PIPE1", "Fatal", 0x0B, 0x4, "error status 0x4", "reset-gpu"),
        (146, "TLW_RX", "Nonfatal", 0x143, 0x8, "not in NVIDIA's table", None),
    ],
)
def test_nvlink_5(number: int, unit: str, word: str, info: int, status: int, quote: str, do: str | None) -> None:
    found = decode(number, NVLINK5.format(number, unit, word, f"0x{info:08x}", f"0x{status:08x}"), "NVIDIA GB200")
    assert found is not None and (found.link, found.do) == (8, do)
    assert quote in found.words[0]


def test_forms_of_the_line() -> None:
    old = "NVRM: Xid (PCI:0000:00:1e): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]"
    wide = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 (0x021425c6 0x00000000)"
    with_pid = (
        "NVRM: Xid (PCI:0018:01:00): 145, pid=7, name=python, RLW_REMAP Nonfatal XC1 i0 Link 05 (0x00000004 0x00000001)"
    )
    links = [found.link for line in (old, wide) if (found := decode(149, line))]
    assert links == [1, -1]
    found = decode(145, with_pid)
    assert found is not None and (found.link, found.do) == (5, "restart-job")
    assert decode(149, "NVRM: Xid (PCI:0000:01:00): 149, something else") is None


def test_the_tables_know_their_actions() -> None:
    known = tables()
    assert {row.do for row in known.xid74} | {row.do for row in known.link_down.values()} <= set(_WEIGHT)
    for row in known.units.values():
        assert set(row) <= {*_WEIGHT, "promoted"}
        bits = [bit for action, bits in row.items() if action != "promoted" for bit in bits]
        assert len(bits) == len(set(bits))
    bits_of = [(row.register, bit) for row in known.xid74 for bit in row.bits]
    assert len(bits_of) == len(set(bits_of))


PIECES = st.sampled_from(
    [
        "on link 14(",
        "0x10000, ",
        "0x0",
        ")",
        "NETIR_LINK_EVT ",
        "Fatal ",
        "XC0 i0 ",
        "Link 08 ",
        "(0x004505c6 ",
        "0x1)",
        " ",
    ]
)


@given(text=st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)), number=st.integers(0, 200))
def test_any_line(text: str, number: int) -> None:
    for model in (H100, None):
        decode(number, text, model)
