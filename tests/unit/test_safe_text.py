"""Text of logs and hosts cannot drive a terminal, and stays one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.report.safe_text import visible


def test_controls_are_spelled() -> None:
    assert visible("a\x1b[31mred\x1b[0m") == "a\\e[31mred\\e[0m"
    assert visible("line\r\nover") == "line\\r\\nover"
    assert visible("\x9b2J\x07\x00") == "\\x9b2J\\x07\\x00"
    assert visible("tab\there") == "tab here"


def test_hidden_and_reordering_characters_are_spelled() -> None:
    assert visible("a\u202eb\u200bc\ufeff") == "a\\u202eb\\u200bc\\ufeff"
    assert visible("\u2028\u2066x") == "\\u2028\\u2066x"
    assert visible("\U000e0041") == "\\U000e0041"


def test_the_colour_of_an_emoji_stays_and_a_variation_of_anything_else_is_spelled() -> None:
    assert visible("GLHF! \U0001f3d6\ufe0f") == "GLHF! \U0001f3d6\ufe0f"  # as Gloo prints it
    assert visible("a\ufe0f\ufe0e") == "a\\ufe0f\\ufe0e"
    assert visible("\U0001f3d6\ufe0f\ufe0f") == "\U0001f3d6\ufe0f\\ufe0f"


def test_bytes_that_were_not_utf8_are_spelled() -> None:
    assert visible(b"\xff\xfeok".decode("utf-8", "surrogateescape")) == "\\xff\\xfeok"


def test_ordinary_text_stays() -> None:
    assert visible("训练完成 — 100 % [bold]") == "训练完成 — 100 % [bold]"


@given(st.text())
def test_result_is_printable_and_one_line(text: str) -> None:
    got = visible(text)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in got)
    assert len(got.splitlines()) <= 1
    got.encode("utf-8")
