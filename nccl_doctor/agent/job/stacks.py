"""Python stacks of running processes through py-spy, which reads their memory and pauses nothing.

py-spy is the host's own, or the controller's copy: that is held in memory (memfd), never written to the host's disk.
"""

import base64
import itertools
import json
import os
import platform
import re
import shutil
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

from nccl_doctor.agent.probing import ProbeTrouble, run_command, stat_fields

LIMIT_S = 8.0  # of one process, and
LOOK_S = 12.0  # of all of one look: where py-spy hangs, the job's other facts must not be lost with its stacks
FRAMES = 40  # innermost ones kept of each thread
THREADS = 4  # kept of each process: the main thread, then those of the user's own program, then those that run
AT_ONCE = 8

_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib(64)?/python3")
_C10D = "torch/distributed/distributed_c10d.py"
_LOGGER = "torch/distributed/c10d_logger.py"  # its wrapper around each call holds what the program gave
# A group, also one that only its members come to make; or the text was cut.
_NAMED = re.compile(r"\.\.\.|ProcessGroup|\"group\": (?!None)|\"use_local_synchronization\": True")

_held: List[int] = []  # the descriptor of the controller's copy, for the agent's life


def find() -> str:
    """The host's own py-spy: on the PATH, or beside the Python that runs this; empty if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


def hold(packed: str) -> str:
    """A path at which the controller's copy (base64 of zlib-packed bytes) can be executed; nothing lies on a disk."""
    if not _held:
        descriptor = os.memfd_create("py-spy")
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(zlib.decompress(base64.b64decode(packed)))
        _held.append(descriptor)
    return "/proc/%d/fd/%d" % (os.getpid(), _held[0])


def program(arguments: Dict[str, Any]) -> Tuple[str, str]:
    """py-spy to run, or why there is none. Asks the controller for its copy where that one runs here.

    Arguments: ``machine`` (the processor for which the controller has one to send) and ``py_spy`` (that program, packed).
    """
    if arguments.get("py_spy"):
        try:
            return hold(str(arguments["py_spy"])), ""
        except (OSError, AttributeError, ValueError) as error:  # no memfd (Linux before 3.17)
            return "", "the controller's py-spy cannot be held in memory: %s" % error
    own = find()
    if own:
        return own, ""
    if arguments.get("machine") == machine():
        raise ProbeTrouble("tool-missing", "no py-spy on this host", {"program": "py-spy"})
    return "", "no py-spy on this host, and none for %s beside nccl-doctor (pip install py-spy)" % machine()


def machine() -> str:
    """The processor's kind, for the controller to know whether its copy runs here."""
    return platform.machine()


def take(program: str, pids: Sequence[int]) -> Dict[int, Dict[str, Any]]:
    """Process id -> how it ended (``outcome``, ``detail``) and the ``threads`` with their frames, innermost first.

    The innermost frame of torch.distributed also has the ``peer`` that the call names (its ``src`` or ``dst``, a rank of
    the whole job) and ``default_group`` (it names no group), where py-spy could read them.
    """
    end = time.monotonic() + LOOK_S
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(pids, pool.map(lambda pid: _one(program, pid, end), pids)))


def spawned(program: str, parents: Dict[int, int]) -> Dict[int, Dict[str, str]]:
    """Process id -> the rank numbers that torch's mp.spawn gave: they stand in no environment variable.

    ``parents``: each process's, in the order of their start, which is that of their numbers: so one is known that has
    not read its own yet. Of the local variables that py-spy reads nothing else is kept than ``i`` of spawn's ``_wrap``
    and ``nprocs`` of the parent. A program that counts its ranks otherwise (over several hosts) keeps that to itself.
    """
    if not program or not parents:
        return {}
    asked = [*parents, *sorted(set(parents.values()))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = dict(zip(asked, pool.map(lambda pid: _spawn_locals(program, pid), asked)))
    found = {}
    for pid, parent in parents.items():
        count = told[parent].get("nprocs", "")
        own = [other for other in parents if parents[other] == parent]
        index = told[pid].get("i") or (str(own.index(pid)) if str(len(own)) == count else "")
        if index and count:
            found[pid] = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return found


def _spawn_locals(program: str, pid: int) -> Dict[str, str]:
    result = run_command([*_argv(program, pid), "--locals"], limit_s=LIMIT_S, limit_bytes=16 << 20)
    try:
        frames = [frame for thread in json.loads(result.stdout) for frame in thread["frames"]]
        return {
            item["name"]: item["repr"]
            for frame in frames
            if frame["filename"].endswith("torch/multiprocessing/spawn.py")
            for item in frame.get("locals") or ()
            if (frame["name"], item["name"]) in (("_wrap", "i"), ("start_processes", "nprocs"))
            and item["repr"].isdigit()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _argv(program: str, pid: int) -> List[str]:
    return [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]


def _one(program: str, pid: int, end: float) -> Dict[str, Any]:
    left = end - time.monotonic()
    if left <= 0:
        return {"outcome": "timed-out", "detail": "its turn did not come within %g s" % LOOK_S, "threads": []}
    result = run_command([*_argv(program, pid), "--locals"], limit_s=min(LIMIT_S, left), limit_bytes=16 << 20)
    if result.outcome in ("failed", "truncated") and not _has_ended(pid):  # a variable changed while it was read
        left = max(0.1, end - time.monotonic())
        result = run_command(_argv(program, pid), limit_s=min(LIMIT_S, left), limit_bytes=4 << 20)
    if result.outcome != "ok" and _has_ended(pid):
        return {"outcome": "ended", "detail": "pid %d ended while it was looked at" % pid, "threads": []}
    if result.outcome != "ok":
        denied = "ermission" in result.stderr or "EPERM" in result.stderr
        return {"outcome": "not-permitted" if denied else result.outcome, "detail": result.detail, "threads": []}
    try:
        threads = [_thread(item) for item in json.loads(result.stdout)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"outcome": "failed", "detail": "py-spy's answer: %s: %s" % (type(error).__name__, error), "threads": []}
    threads.sort(
        key=lambda item: (item["id"] != pid and item["name"] != "MainThread", not _is_own(item), not item["active"])
    )
    return {"outcome": "ok", "detail": "", "threads": threads[:THREADS]}


def _is_own(thread: Dict[str, Any]) -> bool:
    """Whether it runs code of the user's own program, as far as its files' places tell."""
    return not all(_INSTALLED.search(frame["file"]) for frame in thread["frames"])


def _has_ended(pid: int) -> bool:
    return stat_fields(pid)[:1] in ([], ["Z"], ["X"])


def _thread(item: Dict[str, Any]) -> Dict[str, Any]:
    frames = [
        {
            "function": str(frame.get("name", ""))[:120],
            "file": str(frame.get("filename", ""))[-200:],
            "line": _whole(frame.get("line")) or 0,
        }
        for frame in item["frames"][:FRAMES]
    ]
    inside = [number for number, frame in enumerate(frames) if str(frame["file"]).endswith(_C10D)]
    if inside:
        frames[inside[0]].update(_called(item["frames"][inside[0] : FRAMES]))
    return {
        "id": _whole(item.get("os_thread_id")),
        "name": str(item.get("thread_name") or "")[:60],
        "active": bool(item.get("active")),
        "frames": frames,
    }


def _called(frames: List[Dict[str, Any]]) -> Dict[str, Any]:
    """``peer`` and ``default_group`` of a call into torch.distributed, by the local variables of its frames.

    Nothing else of them is kept: they hold the program's own data. A group that is named may be the default one, too, and
    a text that py-spy cut may name one.
    """
    peers: Dict[str, int] = {}
    default_group = False
    for frame in itertools.takewhile(lambda frame: str(frame.get("filename", "")).endswith((_C10D, _LOGGER)), frames):
        known = {item["name"]: item["repr"] for item in frame.get("locals") or () if item["repr"]}
        if frame["filename"].endswith(_LOGGER):
            given = known.get("args", "...") + known.get("kwargs", "...")
            default_group = default_group or not _NAMED.search(given)
        for name in ("src", "dst", "group_src", "group_dst"):
            if known.get(name, "").isdigit():
                peers.setdefault(name, int(known[name]))
    names = ("src", "dst") + (("group_src", "group_dst") if default_group else ())
    peer = next((peers[name] for name in names if name in peers), None)
    return {"peer": peer, "default_group": default_group}


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) else None
