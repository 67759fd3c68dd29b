"""Text of logs that JSON and msgpack take: half characters spelled out."""

from __future__ import annotations

from typing import Any

from nccl_doctor.explain import lazy_re as re

_HALF = re.compile("[\ud800-\udfff]")


def printable(value: Any) -> Any:
    """Plain data without lone surrogates: ``\\xff`` for a byte that was not UTF-8, ``\\ud83d`` for half of a character.

    The former come of decoding a log's bytes, the latter of a JSON record that was cut inside an emoji.
    """
    if isinstance(value, str):
        return _HALF.sub(_spelled, value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(item) for item in value]
    return value


def _spelled(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
