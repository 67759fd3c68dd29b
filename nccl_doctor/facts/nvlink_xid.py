"""What the registers in an NVLink Xid's line say: Xid 74 on Hopper, Xid 144 to 150 on Blackwell. Data with source."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.xid import DATA

# ... NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
_XID74 = re.compile(r"on link ([0-9]{1,3}) ?\(((?:0x[0-9a-fA-F]{1,8}(?:, ?)?){3,8})\)")
# ... 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 ...)
_XID5 = re.compile(
    r"\b([A-Z][A-Z0-9_]{2,30}) {1,8}(Nonfatal|Non-fatal|Fatal)\b[^(\[]{0,60}?Link (-?[0-9]{1,3}) ?"
    r"[(\[](0x[0-9a-fA-F]{1,8})(?: (0x[0-9a-fA-F]{1,8}))?"
)
_WEIGHT = {"ignore": 0, "restart-job": 1, "reset-gpu": 2}
HOPPER = ("H100", "H200", "H800", "H20", "GH200")


class Decoded(msgspec.Struct, frozen=True):
    """One line: the link (-1: none in particular), what its registers say, and the action (None: not in the table)."""

    link: int
    words: tuple[str, ...]
    do: str | None


class _Bits(msgspec.Struct, frozen=True):
    register: int
    bits: tuple[int, ...]
    means: str
    do: str


class _Reason(msgspec.Struct, frozen=True):
    do: str
    means: str
    reason: str = ""


class _Numbers(msgspec.Struct, frozen=True, rename={"reset": "reset-gpu"}):
    means: str
    ignore: tuple[int, ...] = ()
    reset: tuple[int, ...] = ()


class Tables(msgspec.Struct, frozen=True):
    """The data file."""

    xid74: tuple[_Bits, ...]
    units: dict[str, dict[str, tuple[int, ...]]]
    numbers: dict[str, _Numbers]
    always: dict[str, _Reason]
    link_down: dict[int, _Reason]


@functools.cache
def tables() -> Tables:
    """The parsed data file."""
    return msgspec.convert(read_yaml(DATA / "nvlink_xid.yaml"), Tables)


def decode(number: int, text: str, model: str | None = None) -> Decoded | None:
    """The registers of one Xid line; None where there are none, or no table for them.

    Xid 74's table is Hopper's: for another or unknown ``model`` nothing is said. Linear in the text.
    """
    if number == 74 and model is not None and any(name in model.split() for name in HOPPER):
        return _hopper(text)
    return _blackwell(text) if 144 <= number <= 150 else None


def _hopper(text: str) -> Decoded | None:
    found = _XID74.search(text[:1024])
    if found is None:
        return None
    registers = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", found.group(2))]
    words, actions = [], []
    unknown = {index: value for index, value in enumerate(registers, 1) if value}
    for row in tables().xid74:
        value = registers[row.register - 1] if row.register <= len(registers) else 0
        hit = [bit for bit in row.bits if value >> bit & 1]
        if hit:
            words.append(f"register {row.register} {_bits(hit)}: {row.means}")
            actions.append(row.do)
            unknown[row.register] &= ~sum(1 << bit for bit in hit)
    for index, value in unknown.items():
        if value and index in (1, 3, 4, 5):
            words.append(f"register {index} {_bits([b for b in range(32) if value >> b & 1])}: not in NVIDIA's table")
            actions.append("reset-gpu")
    return Decoded(int(found.group(1)), tuple(words), worst(actions))


def _bits(bits: list[int]) -> str:
    return f"bit{'s' if len(bits) > 1 else ''} {', '.join(map(str, bits))}"


def worst(actions: Sequence[str]) -> str | None:
    """The most serious of the actions in this table; None if there is none."""
    return max(actions, key=lambda action: _WEIGHT[action], default=None)


def _blackwell(text: str) -> Decoded | None:
    found = _XID5.search(text[:1024])
    if found is None:
        return None
    unit, _, link, first, second = found.groups()
    info, status = int(first, 16), int(second or "0", 16)
    words, do = _unit(unit, info, status)
    return Decoded(int(link), (f"{unit}: {words}",) if words else (), do)


def _unit(unit: str, info: int, status: int) -> tuple[str, str | None]:
    """What a unit's registers mean, in words, and the action; ("", None) where the table has no row."""
    known = tables()
    if unit in ("NETIR_LINK_EVT", "NETIR_LINK_DOWN"):
        reason = known.link_down.get(info >> 20 & 0x3F)
        if reason is None:
            return f"link down, reason {info >> 20 & 0x3F} (not in NVIDIA's table)", None
        return f"link down, {reason.reason}: {reason.means}", reason.do
    if unit in known.always:
        return known.always[unit].means, known.always[unit].do
    if unit in known.numbers:
        row = known.numbers[unit]
        do = "reset-gpu" if status in row.reset else "ignore" if status in row.ignore else None
        return f"{row.means} (status {status:#x})", do
    if unit not in known.units:
        return "", None
    found = [_status(known.units[unit], info, 1 << bit) for bit in range(32) if status >> bit & 1]
    if not found or None in found:
        return f"error status {status:#x} is not in NVIDIA's table", None
    return f"error status {status:#x}", worst([action for action in found if action])


def _status(row: dict[str, tuple[int, ...]], info: int, bit: int) -> str | None:
    """The action of one status bit; ``promoted`` ones need a reset where the driver marked the event as promoted."""
    if bit in row.get("promoted", ()) and _promoted(info):
        return "reset-gpu"
    return next((action for action in _WEIGHT if bit in row.get(action, ())), None)


def _promoted(info: int) -> bool:
    """The mark stands above the unit's number: bit 10 before R575 (number in bits 5 to 9), bit 7 since (bits 0 to 6)."""
    return bool(info >> 10 & 1) if info & 0x1F == 2 and info >> 5 & 0x1F == 6 else bool(info >> 7 & 1)
