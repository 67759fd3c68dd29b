"""What a file is, by its first bytes. Small on purpose: every process that reads logs needs it, few need the readers."""

_DUMP_MARKS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"')  # of JSON; no log of JSON has them by chance


def kind(head: bytes) -> str:
    """What a file is that begins with these bytes (some KiB): ``dump`` of a flight recorder, ``ras`` report, or empty.

    Any pickle is a ``dump``: it is no log, and the reader of dumps says why it refuses it.
    """
    pickled = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    if pickled or (head.lstrip()[:1] == b"{" and any(mark in head for mark in _DUMP_MARKS)):
        return "dump"
    text = b"compiled with CUDA" in head and (b"Job summary" in head or b"Communicators..." in head)
    return "ras" if text or (b'"communicators_count"' in head and b'"nccl_version"' in head) else ""
