"""What a file is, by its first bytes. Small on purpose: every process that reads logs needs it, few need the readers."""

from __future__ import annotations

_PICKLE_MARKS = (b"record_id", b"profiling_name", b"pg_config", b"collective_seq_id")
_JSON_MARKS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"')  # words that no JSON log has by chance


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins with these bytes (some KiB) is worth giving to the reader of flight-recorder dumps."""
    if _is_pickle(head):
        return any(mark in head for mark in _PICKLE_MARKS)
    return head.lstrip()[:1] == b"{" and any(mark in head for mark in _JSON_MARKS)


def looks_like_report(head: bytes) -> bool:
    """Whether a file that begins with these bytes (some KiB) holds RAS reports."""
    text = b"compiled with CUDA" in head and (b"Job summary" in head or b"Communicators..." in head)
    return text or (b'"communicators_count"' in head and b'"nccl_version"' in head)


def kind(head: bytes) -> str:
    """``dump``, ``ras`` or empty. Any pickle is a ``dump``: no log, and perhaps refused."""
    if _is_pickle(head) or looks_like_dump(head):
        return "dump"
    return "ras" if looks_like_report(head) else ""


def _is_pickle(head: bytes) -> bool:
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
