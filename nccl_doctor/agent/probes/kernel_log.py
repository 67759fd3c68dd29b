"""The kernel log: lines about GPUs, NVLink, RDMA devices, PCIe errors and killed processes."""

import errno
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.probing import ROOT, CommandResult, ProbeTrouble, path, probe, run_command, uptime

LINE_LIMIT = 1024  # characters
KEPT = 2000  # lines, the newest
KEPT_OF_EACH = 100  # lines of one Xid on one GPU: an application's error writes one for each multiprocessor
BOOT_S = 60.0  # a ring buffer that begins later than this after the boot has lost its beginning

# A line is kept where one of these literals is in it; the rules read them with the Xid catalogue.
NEEDLES = (
    "NVRM",
    "Xid",
    "nvidia",
    "nvswitch",
    "mlx5",
    "mlx4",
    "infiniband",
    "ib_",
    "efa ",
    "AER:",
    "PCIe Bus Error",
    "DMAR",
    "AMD-Vi",
    "Out of memory",
    "oom-kill",
    "Killed process",  # "Memory cgroup out of memory: Killed process 4242 (python)"
    "Link is Down",
    "Link down",
    "Link is Up",
    "Link up",
    "Hardware Error",
    "Machine check",
)


@probe("kernel_log", "gpu", limit_s=30.0)
def kernel_log(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The newest matching lines with the second since boot each was written, the source, and how far back it goes.

    Argument ``after_s``: only those written later than this second since boot.
    """
    after_s = arguments.get("after_s")
    source, entries, refused = _read(after_s)
    if source is None:
        raise ProbeTrouble("not-permitted" if refused else "failed", refused or "no kernel log to read")
    if any("Starting gVisor" in text for _, text in entries[:40]):
        raise ProbeTrouble(
            "not-permitted", "%s shows the sandbox's own log (gVisor), not the host's kernel log" % source
        )
    if after_s is not None:
        entries = [entry for entry in entries if entry[0] is not None and entry[0] > after_s]
    told = [entry for entry in entries if any(needle in entry[1] for needle in NEEDLES)]
    kept = _newest(told)
    return {
        "source": source,
        "total": len(entries),
        "first_s": entries[0][0] if entries else None,
        "uptime_s": uptime(),
        "lines": [{"at_s": at, "text": text[:LINE_LIMIT]} for at, text in kept],
        "left_off": len(told) - len(kept),
    }


Entries = List[Tuple[Optional[float], str]]


_EVENT = re.compile(r"Xid \([^)]*\): [0-9]+")  # an Xid or SXid of one GPU or switch


def _newest(entries: Entries) -> Entries:
    """The newest lines in their order, of each Xid some: a flood (AER, or an application's Xid 13) pushes no other out."""
    events: Dict[str, List[int]] = {}
    others: List[int] = []
    for number, (_, text) in enumerate(entries):
        event = _EVENT.search(text)
        (events.setdefault(event.group(), []) if event else others).append(number)
    said = [number for numbers in events.values() for number in numbers[-KEPT_OF_EACH:]]
    room = max(0, KEPT - len(said))
    return [entries[number] for number in sorted(said + (others[-room:] if room else []))]


def _dmesg() -> Tuple[CommandResult, Entries]:
    result = run_command(["dmesg"], limit_s=10.0, limit_bytes=16 << 20)
    return result, [_dmesg_line(line) for line in result.stdout.splitlines()] if result.outcome == "ok" else []


def _journal(after_s: Optional[float] = None) -> Tuple[CommandResult, Entries]:
    """What the journal has of this boot: of more than can be read, or be read in time, the newest."""
    argv = ["journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-q", "--reverse"]
    if after_s is not None:
        argv += ["--since", "-%ds" % (max(0.0, (uptime() or after_s) - after_s) + 2)]
    result = run_command(argv, limit_s=10.0, limit_bytes=16 << 20)
    lines = result.stdout.splitlines()
    if result.outcome != "ok":  # the last line is cut: Xid 7 may have been 79
        lines = lines[:-1] if result.outcome in ("truncated", "timed-out") else []
    return result, [_dmesg_line(line) for line in reversed(lines)]


def _earlier(entries: Entries) -> Entries:
    """What the journal still has from before the ring buffer's first line, where that has lost its beginning."""
    first = entries[0][0] if entries else None
    if first is None or first <= BOOT_S:
        return []
    return [(at, text) for at, text in _journal()[1] if at is not None and at < first]


def _read(after_s: Optional[float] = None) -> Tuple[Optional[str], Entries, str]:
    """The first source that answers: /dev/kmsg, dmesg, journalctl. Else (None, [], why the first was refused)."""
    refused = ""
    try:
        entries = _kmsg(path("/dev/kmsg"))
        earlier = [] if ROOT or after_s is not None else _earlier(entries)
        return "/dev/kmsg" + (", journalctl -k" if earlier else ""), earlier + entries, ""
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            refused = "reading the kernel log needs root (or kernel.dmesg_restrict=0)"
    for name, ask in (("dmesg", _dmesg), ("journalctl -k", lambda: _journal(after_s))):
        result, entries = ask()
        if entries or (after_s is not None and result.outcome == "ok"):
            return name, entries, ""
        if "not permitted" in result.stderr or "ermission" in result.stderr:
            refused = refused or "%s: %s" % (name, result.detail)
    return None, [], refused


def _kmsg(absolute: str) -> Entries:
    """All records that the kernel still has: one read each, without waiting for new ones."""
    entries: Entries = []
    if os.path.isfile(absolute):  # a recorded tree
        with open(absolute, "rb") as stream:
            return [entry for entry in map(kmsg_record, stream.read().decode("utf-8", "replace").splitlines()) if entry]
    descriptor = os.open(absolute, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten meanwhile: anew, from the oldest that there is
                    entries.clear()
                    continue
                if error.errno == errno.EAGAIN:
                    break
                raise
            if not record:
                break
            for line in record.decode("utf-8", "replace").splitlines():
                parsed = kmsg_record(line)
                if parsed:
                    entries.append(parsed)
    finally:
        os.close(descriptor)
    return entries


def kmsg_record(line: str) -> Optional[Tuple[Optional[float], str]]:
    """Seconds since boot and text of one record (``6,1234,987654321,-;text``); None for a continuation line."""
    head, separator, text = line.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdecimal():
        return None if line.startswith(" ") or not line else _dmesg_line(line)
    return int(fields[2]) / 1e6, text


def _dmesg_line(line: str) -> Tuple[Optional[float], str]:
    """Seconds since boot and text of ``[  123.456] text``, as dmesg and journalctl print it."""
    head, separator, text = line.lstrip().partition("] ")
    try:
        return (float(head.lstrip("[").strip()), text) if separator and head.startswith("[") else (None, line)
    except ValueError:
        return None, line
