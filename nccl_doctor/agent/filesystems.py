"""Mounts and file systems: free space where a job writes, /dev/shm, and which mounts hang."""

import os
import re
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.probing import path, readable, run_command

FILESYSTEM_LIMIT_S = 3.0  # a mount that does not answer in this time hangs: local ones answer in microseconds
MOUNTS_BYTES = 16 << 20  # of the table's text: a Kubernetes host has thousands of mounts
CACHE_VARIABLES = (
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "HF_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "TORCH_EXTENSIONS_DIR",
)


def mounts() -> List[Dict[str, str]]:
    """Mount points with type, source and options; later ones cover earlier ones. Octal escapes are undone."""
    found = []
    for line in readable("/proc/self/mountinfo", MOUNTS_BYTES).splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 6 or len(after) < 3:
            continue
        options = set(before[5].split(",")) | set(after[2].split(","))
        found.append(
            {
                "root": before[3],
                "point": re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), before[4]),
                "type": after[0],
                "source": after[1],
                "options": after[2],
                "read_only": "yes" if "ro" in options else "",
                "noexec": "yes" if "noexec" in options else "",
            }
        )
    return found


def mount_of(absolute: str, table: List[Dict[str, str]]) -> Optional[Dict[str, str]]:
    """The mount a path lies on, by its text alone: looking at the path itself could hang."""
    best = None
    for mount in table:
        point = mount["point"].rstrip("/")
        if (absolute == point or absolute.startswith(point + "/")) and (
            best is None or len(point) >= len(best["point"].rstrip("/"))
        ):
            best = mount
    return best


def _directories() -> List[Tuple[str, str]]:
    """(role, path) of the places a training job writes to, as this environment has them."""
    home = os.path.expanduser("~")  # stays as it is where this user has neither $HOME nor an entry in passwd
    found = [("/tmp", "/tmp"), ("home", home), ("cache", os.path.join(home, ".cache"))]
    found += [(name, os.environ.get(name, "")) for name in CACHE_VARIABLES]
    return [(role, place) for role, place in found if place.startswith("/")]


def _statfs(absolute: str, limit_s: float) -> Dict[str, Any]:
    """Sizes of the file system of a path or of its nearest existing parent; in a child, because it may hang.

    What hangs is asked a second time: a mount hangs again, and a host that was busy for a moment answers.
    """
    place = os.path.normpath(absolute)
    hung = 0
    while True:
        answer = run_command(["stat", "-f", "-c", "%S %b %a %c %d", path(place)], limit_s=limit_s)
        words = answer.stdout.split()
        if answer.outcome == "ok" and len(words) == 5 and all(word.isdigit() for word in words):
            block, blocks, free, files, files_free = map(int, words)
            return {
                "outcome": "ok",
                "looked_at": place,
                "size_bytes": block * blocks,
                "free_bytes": block * free,
                "inodes": files,
                "inodes_free": files_free,
            }
        if answer.outcome == "failed" and "No such file" in answer.stderr and place != "/":
            place = os.path.dirname(place)
            continue
        if answer.outcome == "timed-out":
            if _is_busy(limit_s):
                detail = "no answer within %.0f s, but this host is so busy that /proc is slow as well" % limit_s
                return {"outcome": "failed", "looked_at": place, "detail": detail}
            hung += 1
            if hung < 2:
                continue
        outcome = "not-permitted" if "Permission denied" in answer.stderr else answer.outcome
        return {"outcome": "failed" if outcome == "ok" else outcome, "looked_at": place, "detail": answer.detail}


def _is_busy(limit_s: float) -> bool:
    """The control: /proc never hangs, so if asking it takes long too, a time-out says nothing of a mount."""
    control = run_command(["stat", "-f", "/proc"], limit_s=limit_s)
    return control.outcome == "timed-out" or control.seconds > limit_s / 6


def filesystems() -> List[Dict[str, Any]]:
    """Free space and inodes where a job writes. All are asked at once: hung mounts cost twice 3 s, not 3 s each.

    What has not answered within four times that is the host's slowness: a mount that hangs is told by then.
    """
    table = mounts()
    found = [{"role": role, "path": place} for role, place in _directories()]  # type: List[Dict[str, Any]]

    def fill(entry: Dict[str, Any]) -> None:
        entry.update(_statfs(entry["path"], FILESYSTEM_LIMIT_S))

    workers = [threading.Thread(target=fill, args=(entry,), daemon=True) for entry in found]
    for worker in workers:
        worker.start()
    until = time.monotonic() + 4 * FILESYSTEM_LIMIT_S + 3.0
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
    for entry in found:
        if "outcome" not in entry:
            entry.update(outcome="failed", detail="this host is too busy to tell")
        mount = mount_of(os.path.normpath(entry["path"]), table) or {}
        entry["mount"] = mount.get("point", "")
        entry["type"] = mount.get("type", "")
        entry["source"] = mount.get("source", "")
        for option in ("read_only", "noexec"):
            entry[option] = bool(mount[option]) if mount else None
    return found
