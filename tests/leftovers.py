"""``python -m tests.leftovers COMMAND``: run the tests, and fail if anything of them is left: processes, labs, files.

Whatever they start that loses its parent becomes a child of this process (Linux's child subreaper), so that nothing
escapes it. Temporary files go into a directory of their own, which is removed; where the tests failed, it is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.lab.lab import abandoned

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = float(os.environ.get("LEFTOVERS_PATIENCE_S", "30"))  # for what was told to end


def main(command: list[str]) -> int:
    """The command's exit status; 1 where it succeeded and left something behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    labs = set(abandoned())
    directory = Path(tempfile.mkdtemp(prefix="tests-"))  # short: sockets lie in it, whose names may have 107 bytes
    status = run(command, directory)
    left = [f"process {pid}: {words}" for pid, words in remaining().items()]
    left += [f"lab: {name}" for name in sorted(set(abandoned()) - labs)]
    left += [f"file: {path}" for path in directory.glob("nccl-doctor*")]
    left += [f"mount: {line.split()[4]}" for line in mounts() if str(directory) in line]
    for line in left:
        print(f"left behind: {line}", file=sys.stderr)
    if status or left:
        print(f"kept: {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return status or int(bool(left))


def run(command: list[str], directory: Path) -> int:
    """Run the command with this directory for its temporary files, and take in whoever loses its parent meanwhile."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the command gets it too, and ends
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(directory)})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def remaining() -> dict[int, str]:
    """Processes that the command left and that do not end by themselves, with their command lines; now ended."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := children()) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = dict(found)
    while found:  # a killed one's children come to us in turn
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        found = children()
        told |= found
    return told


def children() -> dict[int, str]:
    """The living children of this process, with their command lines."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid] = " ".join(child.cmdline())
    return found


def mounts() -> list[str]:
    """The lines of this process's table of mounts."""
    return Path("/proc/self/mountinfo").read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
