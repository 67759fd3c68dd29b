"""A host on which a job runs, looked at again and again: each sample is told as an event, and nothing is kept here."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from nccl_doctor.agent import isolated, nvml
from nccl_doctor.agent.cgroups import oom_file_of, oom_kills
from nccl_doctor.agent.job import processes, readings, stacks
from nccl_doctor.agent.probes import gpu, infiniband, interfaces, kernel_log, system
from nccl_doctor.agent.probing import (
    ProbeTrouble,
    emitter,
    first_line,
    link,
    listed,
    path,
    probe,
    stat_fields,
    uptime,
    whole_number,
)
from nccl_doctor.agent.whereabouts import device_of, whereabouts

EVERY_S = 5.0
LOOK_FOR_RANKS_S = 60.0  # to look through all of /proc takes longer than a whole sample
LOG_LATE_S = 60.0
INTERFACES = 64  # of a host with a thousand containers those that have hardware come first
LONGEST_S = 30 * 86400.0
_MOVED = ("rx_bytes", "tx_bytes")
_NIC_ERRORS = ("rx_errors", "tx_errors")
_PORT_MOVED = ("port_rcv_data", "port_xmit_data")
_PORT_ERRORS = ("symbol_error", "port_rcv_errors", "port_xmit_discards", "link_error_recovery", "link_downed")


class _Known(NamedTuple):
    """A rank: when it was started, and the file that counts what is killed in its group for want of memory."""

    start_ticks: int
    oom_file: str


class _Look:
    """Looks for ranks beside the samples: all of /proc, and py-spy, may take longer than a sample may."""

    def __init__(self, arguments: Dict[str, Any]) -> None:
        self._arguments = arguments
        self._py_spy, _ = stacks.program({**arguments, "machine": ""})
        self._told: processes.Numbers = {}
        self._pool = ThreadPoolExecutor(1)
        self._under_way: Any = None  # a Future: there is no subscript for it before Python 3.9
        self._due_s = 0.0

    def begin(self, now_s: float, wait_s: float) -> bool:
        """Begin one if it is due, and wait a little: mostly it is done then."""
        if self._under_way is not None or now_s < self._due_s:
            return False
        self._due_s = now_s + LOOK_FOR_RANKS_S
        self._under_way = self._pool.submit(processes.find, self._py_spy, self._told)
        wait([self._under_way], wait_s)
        return True

    def found(self) -> Optional[Tuple[processes.Processes, Dict[str, Any]]]:
        """What one that has ended found, once. Asks for the controller's py-spy where there is none, and some need it."""
        if self._under_way is None or not self._under_way.done():
            return None
        (found, unread), self._under_way = self._under_way.result(), None
        if unread["unnumbered"] and not self._py_spy:
            stacks.program(self._arguments)
        for process in found:
            process.pop("dump_prefixes", None)
        return found, unread


@probe("watch", "watch", limit_s=LONGEST_S)
def watch(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """CPU, memory, interfaces, RDMA ports, ranks and new lines of the kernel log, every ``every_s`` seconds.

    Where the host is asked again: ``ranks`` that were found before (process -> start), and ``log_after_s``, the second
    since boot up to which the kernel log was read. ``machine`` and ``py_spy``: as of :func:`stacks.program`, which is
    asked where there are processes whose rank stands in no variable. Never returns: who asked hangs up.
    """
    every_s = float(arguments.get("every_s", EVERY_S))
    tell = emitter()
    up_s = uptime() or 0.0
    log_s = float(arguments.get("log_after_s", up_s))
    log_s = log_s if log_s <= up_s else 0.0  # it was booted anew
    look = _Look(arguments)
    known = {int(pid): _Known(ticks, oom_file_of(int(pid))) for pid, ticks in arguments.get("ranks", {}).items()}
    nics: List[str] = []
    devices: Dict[str, str] = {}  # of each interface and port, what is behind it
    before: Set[str] = set()  # whoever was there at the last sample
    while True:
        started = time.monotonic()
        sample: Dict[str, Any] = {"at_s": started, **_host()}
        begun = look.begin(started, every_s / 5)
        if begun:
            nics, sample["named"] = _interfaces(), _named()
        if told := look.found():
            found, unread = told
            # Who has rewritten its environment since (setproctitle) is not found again, and lives all the same.
            ranks = {item["pid"]: item["start_ticks"] for item in found if item["role"] == "rank"}
            known.update({pid: _Known(ticks, oom_file_of(pid)) for pid, ticks in ranks.items()})
            namespace = link("/proc/self/ns/net")
            sample["job"] = {"processes": found, "namespace": namespace, "uid": os.geteuid(), **unread}
        # Whoever has lost its address, or stands behind 64 others now, is there all the same.
        names = dict.fromkeys([*nics, *(name for name in before if "/" not in name)])
        here = sample["nics"] = {**_ports(), **{name: one for name in names if (one := _interface(name))}}
        sample["gone"] = {
            name: whereabouts(name, device)
            for name, device in devices.items()
            if name not in here and (name in before or (device and begun))
        }
        devices = {name: device for name, device in devices.items() if device or name in here}
        devices.update({name: device_of(name) for name in here if name not in before})
        before = set(here)
        sample["ranks"] = {str(pid): one for pid, rank in known.items() if (one := _rank(pid, rank))}
        # Read after the host's own count, so that of a kill in between nobody says that it was another job's.
        sample["killed"] = {file: oom_kills(file) for file in {oom_file for _, oom_file in known.values()} if file}
        known = {pid: rank for pid, rank in known.items() if str(pid) in sample["ranks"]}
        sample["log"], log_s = _log(log_s)
        sample["cost_s"] = sum(os.times()[:4])
        tell(sample)
        time.sleep(max(0.0, started + every_s - time.monotonic()))


@probe("watch_gpus", "watch", limit_s=LONGEST_S)
def watch_gpus(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """What NVML says of every GPU, every ``every_s`` seconds. Returns when NVML does not answer, and says which call.

    ``nvml_silence_s``: how long one call may take.
    """
    every_s = float(arguments.get("every_s", EVERY_S))
    pynvml = gpu.find_pynvml()
    if pynvml is None:
        raise ProbeTrouble("tool-missing", "python module pynvml: not found, or too old", {"module": "pynvml"})
    tell = emitter()
    last: Dict[str, Any] = {}

    def take(step: Dict[str, Any]) -> None:
        if "samples" in step:
            tell(step)
        else:
            last.update(step)

    silence_s = every_s + float(arguments.get("nvml_silence_s", gpu.NVML_SILENCE_S))
    answer = isolated.call(
        lambda report: nvml.sample(pynvml, report, every_s),
        LONGEST_S,
        silence_s,
        start_s=gpu.NVML_START_S,
        on_report=take,
    )
    if "failed" in last:
        failed = last["failed"]
        raise ProbeTrouble("failed", "%s: %s" % (failed["call"], failed["text"]), failed)
    where, outcome = nvml.call_of(last), answer.outcome if answer.outcome != "ok" else "failed"
    raise ProbeTrouble(outcome, "NVML call %s %s" % (where, answer.detail), {"call": where, "code": None})


def _host() -> Dict[str, Any]:
    """CPU time in ticks (busy, all), memory in bytes, totals of swapping and kills, shares of time that tasks waited."""
    words = [int(word) for word in (first_line("/proc/stat") or "").split()[1:9]]
    idle = sum(words[3:5])
    return {
        "cpu": [sum(words) - idle, sum(words)] if len(words) == 8 else None,
        "memory": system.memory(),
        "kernel": readings.swapping(),
        "waiting": {name: told for name in ("cpu", "memory", "io") if (told := _waiting(name)) is not None},
    }


def _waiting(name: str) -> Optional[float]:
    """Percent of the last 10 s in which some task waited for this, by the kernel (PSI)."""
    line = first_line("/proc/pressure/" + name) or ""
    found = [word[6:] for word in line.split() if word.startswith("avg10=")]
    try:
        return float(found[0]) if line.startswith("some") and found else None
    except ValueError:
        return None


def _named() -> Dict[str, Any]:
    """What the host calls itself, and its addresses: by these two names of one machine are known."""
    return {
        "calls_itself": socket.gethostname(),
        "addresses": [one["address"] for one in interfaces.kernel_addresses()],
    }


def _interfaces() -> List[str]:
    """What has hardware, or an address that leads further: not the host's ends of its containers, nor their bridges."""
    told = interfaces.kernel_addresses()
    far = {item["name"] for item in told if not (item["loopback"] or item["address"].startswith(("169.254.", "fe80:")))}

    def has(name: str, part: str) -> bool:
        return os.path.exists(path("/sys/class/net/%s/%s" % (name, part)))

    hardware = [name for name in listed("/sys/class/net") if has(name, "device")]
    others = [
        name for name in listed("/sys/class/net") if name in far and name not in hardware and not has(name, "bridge")
    ]
    return (hardware + others)[:INTERFACES]


def _interface(name: str) -> Optional[Dict[str, Any]]:
    """None where it is not there (any more)."""
    base = "/sys/class/net/" + name
    if not listed(base):
        return None
    received, sent = _counters(base + "/statistics", _MOVED).values()
    return {
        "speed_mbps": interfaces.speed_mbps(base),
        "received_bytes": received,
        "sent_bytes": sent,
        "errors": {**_counters(base + "/statistics", _NIC_ERRORS), "losses": interfaces.losses(base)},
    }


def _ports() -> Dict[str, Any]:
    """RDMA device and port -> rate and counters; the standard ones count data in units of four bytes.

    A driver without the standard counters (EFA's, drivers/infiniband/hw/efa/efa_verbs.c) has the bytes in its own.
    """
    found = {}
    for device in listed("/sys/class/infiniband"):
        for number in infiniband.ports_of(device):
            base = "/sys/class/infiniband/%s/ports/%s" % (device, number)
            words = _counters(base + "/counters", _PORT_MOVED).values()
            moved = [None if word is None else 4 * word for word in words]
            if moved[0] is None:
                moved = list(_counters(base + "/hw_counters", _MOVED).values())
            found["%s/%s" % (device, number)] = {
                "rate": first_line(base + "/rate"),
                "received_bytes": moved[0],
                "sent_bytes": moved[1],
                "errors": _counters(base + "/counters", _PORT_ERRORS),
            }
    return found


def _counters(directory: str, names: Tuple[str, ...]) -> Dict[str, Optional[int]]:
    return {name: whole_number(first_line("%s/%s" % (directory, name))) for name in names}


def _rank(pid: int, known: _Known) -> Optional[Dict[str, Any]]:
    """State, CPU time and resident memory of a rank; None where it has ended."""
    fields = stat_fields(pid)
    if not fields or int(fields[19]) != known.start_ticks or fields[0] in "ZX":
        return None
    ticks = float(os.sysconf("SC_CLK_TCK"))
    return {
        "state": fields[0],
        "cpu_s": (int(fields[11]) + int(fields[12])) / ticks,
        "resident_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        "oom_file": known.oom_file,
    }


def _log(after_s: float) -> Tuple[Dict[str, Any], float]:
    """The kernel log's lines since then, or why they cannot be read; and from when on to read next."""
    try:
        data = kernel_log.kernel_log({"after_s": after_s})
    except ProbeTrouble as trouble:
        return {"outcome": trouble.outcome, "detail": trouble.detail}, after_s
    times = [line["at_s"] for line in data["lines"]]
    # So that a long watch does not read all of the journal again; the journal may get a line late.
    return {"outcome": "ok", "told": data}, max([after_s, (data["uptime_s"] or 0.0) - LOG_LATE_S, *times])
