"""The decoder of plain pickles: equal to pickle on plain data, and closed to everything else."""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.explain import plain_pickle
from nccl_doctor.explain.plain_pickle import PlainPickleRefused, loads

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.tuples()
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=8) | st.integers(-(2**40), 2**40), inner, max_size=5)
    ),
    max_leaves=40,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_back_as_pickle_would_give_it(data: Any, protocol: int) -> None:
    assert loads(pickle.dumps(data, protocol)) == data


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_plain_and_never_anything_else(data: bytes) -> None:
    with contextlib.suppress(PlainPickleRefused):
        loads(b"\x80\x02" + data)


@given(st.data())
def test_any_truncation_is_refused(data: st.DataObject) -> None:
    whole = pickle.dumps({"entries": [{"record_id": 1, "frames": [("a", 2, 3.5)]}]}, 4)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PlainPickleRefused):
        loads(whole[:length])


class Exploit:
    """Touches a file if anybody unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_is_never_run(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "executed"
    exploit = pickle.dumps({"version": "2.10", "entries": [Exploit(marker)]}, protocol)
    with pytest.raises(PlainPickleRefused):
        loads(exploit)
    assert not marker.exists()
    pickle.loads(exploit)  # noqa: S301  the proof that the exploit is one
    assert marker.exists()


# One pickle per opcode that can reach code, a class, an extension, or a persistent object.
FORBIDDEN = {
    "GLOBAL": b"\x80\x02cos\nsystem\n.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "REDUCE": b"\x80\x02}(tR.",
    "BUILD": b"\x80\x02}}b.",
    "INST": b"\x80\x02(ios\nsystem\n.",
    "OBJ": b"\x80\x02(}o.",
    "NEWOBJ": b"\x80\x02}(t\x81.",
    "NEWOBJ_EX": b"\x80\x04}(t}\x92.",
    "PERSID": b"\x80\x02Pname\n.",
    "BINPERSID": b"\x80\x02NQ.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT2": b"\x80\x02\x83\x01\x00.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "EMPTY_SET": b"\x80\x04\x8f.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
    "LONG4": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "DUP": b"\x80\x02]2.",
}


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_opcodes_beyond_plain_data_are_refused_by_name(name: str) -> None:
    with pytest.raises(PlainPickleRefused, match=f"opcode {name} is not allowed"):
        loads(FORBIDDEN[name])


def test_a_date_is_not_plain() -> None:
    with pytest.raises(PlainPickleRefused, match="GLOBAL"):
        loads(pickle.dumps([datetime.date(2026, 1, 1)], 2))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"x.",  # nine bytes that ask for an exabyte
        b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
    ],
)
def test_claimed_sizes_beyond_the_file_are_refused(data: bytes) -> None:
    with pytest.raises(PlainPickleRefused, match="truncated"):
        loads(data)


def test_memo_doubling_is_counted_not_expanded() -> None:
    bomb = b"\x80\x02]q\x00"
    for level in range(60):  # 2**60 leaves in 600 bytes
        bomb += b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1])
    # Leave only the last list on the stack.
    bomb = b"\x80\x02(" + bomb[2:] + b"t."
    with pytest.raises(PlainPickleRefused, match="expand to more than"):
        loads(bomb)


def test_memo_doubling_below_the_limit_is_shared_not_copied() -> None:
    leaf = ["x"]
    for _ in range(10):
        leaf = [leaf, leaf]  # type: ignore[list-item]
    found = loads(pickle.dumps(leaf, 2))
    assert isinstance(found, list) and found[0] is found[1]


def test_a_container_that_contains_itself_is_refused() -> None:
    own: list[Any] = []
    own.append({"deeper": own})
    with pytest.raises(PlainPickleRefused, match="contains itself"):
        loads(pickle.dumps(own, 2))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(PlainPickleRefused, match="nested deeper"):
        loads(b"\x80\x02" + b"]" * 10_000 + b"a" * 9_999 + b".")


def test_a_flood_of_tiny_opcodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 1000)
    with pytest.raises(PlainPickleRefused, match="more than 1000 opcodes"):
        loads(b"\x80\x02(" + b"]" * 2000 + b"t.")


def test_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_BYTES", 10)
    with pytest.raises(PlainPickleRefused, match="more than the 10"):
        loads(pickle.dumps(["0123456789"], 2))


def test_huge_integers_and_odd_keys_are_refused() -> None:
    with pytest.raises(PlainPickleRefused, match="an integer of"):
        loads(pickle.dumps(1 << 100, 2))
    with pytest.raises(PlainPickleRefused, match="a dict key of type tuple"):
        loads(pickle.dumps({("a",): 1}, 2))


@pytest.mark.parametrize(
    "data", [b"", b".", b"\x80", b"\x80\x02.", b"\x80\x02NN.", b"\x80\x02(.", b"\x80\x02a.", b"\x80\x09N."]
)
def test_unfinished_machines_are_refused(data: bytes) -> None:
    with pytest.raises(PlainPickleRefused):
        loads(data)


@pytest.mark.parametrize(
    "data", [b"\x80\x02h\x05.", b"\x80\x02e.", b"\x80\x02N(Ne.", b"\x80\x02}(Nu.", b"\x80\x02q\x00N."]
)
def test_stack_and_memo_abuse_is_refused(data: bytes) -> None:
    with pytest.raises(PlainPickleRefused):
        loads(data)
