"""One look at processes: state, threads, memory, and the file or process that a thread waits for in the kernel."""

import os
import struct
from typing import Any, Dict, Optional

from nccl_doctor.agent.filesystems import mount_of, mounts
from nccl_doctor.agent.job import connections, stacks
from nccl_doctor.agent.probing import first_line, link, listed, path, readable, stat_fields
from nccl_doctor.agent.redaction import redact_text

THREADS_TOLD = 6  # beside the main thread: those that are stuck in the kernel, then those that run
# System calls whose first argument is the file they wait for, or a list of such; by machine.
_FILE_CALLS = {
    "x86_64": {
        7: "poll", 271: "poll",
        0: "read", 1: "write", 17: "pread", 18: "pwrite", 19: "readv", 20: "writev", 40: "sendfile", 72: "fcntl",
        73: "flock", 74: "fsync", 75: "fdatasync", 3: "close", 5: "fstat", 76: "truncate", 77: "ftruncate",
        285: "fallocate", 45: "recvfrom", 44: "sendto", 43: "accept", 42: "connect",
    },
    "aarch64": {
        73: "poll", 63: "read", 64: "write", 67: "pread", 68: "pwrite", 65: "readv", 66: "writev", 71: "sendfile", 25: "fcntl",
        32: "flock", 82: "fsync", 83: "fdatasync", 57: "close", 80: "fstat", 46: "ftruncate", 47: "fallocate",
        207: "recvfrom", 206: "sendto", 202: "accept", 203: "connect",
    },
}  # fmt: skip


def reading(pid: int) -> Optional[Dict[str, Any]]:
    """State, CPU time, memory, input and output, and the threads that tell; None where the process has ended."""
    fields = stat_fields(pid)
    if not fields:
        return None
    status = _fields("/proc/%d/status" % pid)
    main = _thread(pid, pid)
    others = (_thread(pid, int(tid)) for tid in listed("/proc/%d/task" % pid) if tid != str(pid))
    telling = sorted((thread for thread in others if thread), key=lambda thread: str(thread["state"]) != "D")
    io = _fields("/proc/%d/io" % pid)
    return {
        "state": fields[0],
        "cpu_s": _seconds(fields[11], fields[12]),
        "threads": int(fields[17]),
        "main": main,
        "others": telling[:THREADS_TOLD],
        "frozen": _is_frozen(pid),
        "dumps_core": status.get("CoreDumping") == "1",
        "switches": _number(status.get("voluntary_ctxt_switches")),
        "tracer": _number(status.get("TracerPid")) or 0,
        "resident_bytes": (_number(status.get("VmRSS")) or 0) * 1024,
        "swapped_bytes": (_number(status.get("VmSwap")) or 0) * 1024,
        "read_bytes": _number(io.get("rchar")),
        "written_bytes": _number(io.get("wchar")),
    }


def _is_frozen(pid: int) -> bool:
    """Whether its control group is frozen (``docker pause``), which no state letter tells: it is S or D."""
    for line in readable("/proc/%d/cgroup" % pid).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            places = ["/sys/fs/cgroup%s%s/cgroup.events" % (at, group) for at in ("", "/unified")]
        else:
            places = ["/sys/fs/cgroup/freezer%s/freezer.state" % group] if controllers == "freezer" else []
        if any(word in readable(place) for place in places for word in ("frozen 1", "FROZEN")):
            return True
    return False


def _thread(pid: int, tid: int) -> Optional[Dict[str, Any]]:
    """One thread; None where it is gone, or sleeps and is not the main one: hundreds do."""
    place = "task/%d/" % tid
    fields = stat_fields(pid, place)
    if not fields or (fields[0] == "S" and tid != pid):
        return None
    thread = {
        "id": tid,
        "name": readable("/proc/%d/%scomm" % (pid, place))[:40],
        "state": fields[0],
        "cpu_s": _seconds(fields[11], fields[12]),
        "waits_in": readable("/proc/%d/%swchan" % (pid, place)).strip("0")[:60],
    }
    if tid == pid or fields[0] == "D":
        thread.update(_call(pid, place))
        kernel = readable("/proc/%d/%sstack" % (pid, place))
        thread["kernel_stack"] = [line.partition("] ")[2][:80] for line in kernel.splitlines()[:8]]
    return thread


def _call(pid: int, place: str) -> Dict[str, Any]:
    """The system call that a thread is in, and the file it waits for where that is its first argument, or alone in a list."""
    words = readable("/proc/%d/%ssyscall" % (pid, place)).split()
    if len(words) < 3 or not words[0].isdigit():
        return {}
    name = _FILE_CALLS.get(stacks.machine(), {}).get(int(words[0]))
    if name is None:
        return {}
    number = int(words[1], 16)
    if name == "poll":
        number = _polled(pid, number) if int(words[2], 16) == 1 else -1
    target = link("/proc/%d/fd/%d" % (pid, number))
    if not target:
        return {}
    told = {"call": name, "file": redact_text(target)[:200], "file_system": ""}
    if target.startswith("/"):
        mount = mount_of(target, mounts())
        told["file_system"] = mount["type"] if mount else ""
    elif target.startswith("socket:["):
        known = connections.of_process(pid).get(int(target[8:-1]))
        told["file"] = "TCP %s -> %s" % (known["local"], known["peer"]) if known else target
    if name in ("flock", "fcntl"):
        told.update(_lock_holder(pid))
    return told


def _polled(pid: int, at: int) -> int:
    """The descriptor in the ``struct pollfd`` at this address of a process's memory; -1 where it may not be read."""
    try:
        with open(path("/proc/%d/mem" % pid), "rb", 0) as memory:
            return int(struct.unpack("=i", os.pread(memory.fileno(), 4, at))[0])
    except (OSError, OverflowError, struct.error):
        return -1


def _lock_holder(pid: int) -> Dict[str, Any]:
    """Who holds the file lock that a process waits for: the line above those of its waiters."""
    holder = 0
    for line in readable("/proc/locks").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "->":
            if fields[5] == str(pid):
                return {"holder": holder, "holder_name": (first_line("/proc/%d/comm" % holder) or "")[:40]}
        elif len(fields) > 5:
            holder = int(fields[4])
    return {}


def _fields(absolute: str) -> Dict[str, str]:
    pairs = (line.partition(":") for line in readable(absolute).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(text: Optional[str]) -> Optional[int]:
    word = (text or "").split()
    return int(word[0]) if word and word[0].isdigit() else None


def _seconds(*ticks: str) -> float:
    return round(sum(map(int, ticks)) / float(os.sysconf("SC_CLK_TCK")), 2)


def swapping() -> Dict[str, int]:
    """Pages swapped in and out, and processes that the kernel killed for want of memory, since boot."""
    fields = dict(line.split(" ", 1) for line in readable("/proc/vmstat").splitlines() if " " in line)
    return {name: int(fields[name]) for name in ("pswpin", "pswpout", "oom_kill") if fields.get(name, "").isdigit()}


def pressure() -> Dict[str, str]:
    """What the kernel says of how much tasks have waited for memory, input and output, and CPU (pressure-stall information)."""
    return {
        name: text.splitlines()[-1][:120]
        for name in ("memory", "io", "cpu")
        for text in [readable("/proc/pressure/" + name)]
        if text
    }
