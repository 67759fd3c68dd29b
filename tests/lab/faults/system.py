"""Faults of the system: limits, memory file systems, disks, clock, tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .base import Fault


@dataclass
class SmallShm(Fault):
    """/dev/shm has ``mebibytes`` MiB, as in a container started without --shm-size."""

    name = "small-shm"
    mebibytes: int = 64

    def apply(self) -> None:
        self.inside(f"mount -o remount,size={self.mebibytes}m /dev/shm")

    def undo(self) -> None:
        self.inside("mount -o remount,size=16g /dev/shm")


@dataclass
class NoShm(Fault):
    """There is no /dev/shm."""

    name = "no-shm"

    def apply(self) -> None:
        self.inside("umount /dev/shm; rmdir /dev/shm")

    def undo(self) -> None:
        self.inside("[ -d /dev/shm ] || { mkdir /dev/shm; mount -t tmpfs -o mode=1777,size=16g tmpfs /dev/shm; }")


@dataclass
class LowMemlock(Fault):
    """Logins may lock ``kibibytes`` KiB of memory."""

    name = "low-memlock"
    kibibytes: int = 64

    def apply(self) -> None:
        self.set_limits(memlock=f"{self.kibibytes * 1024}:{self.kibibytes * 1024}")

    def undo(self) -> None:
        self.restore_settings()


@dataclass
class LowNofile(Fault):
    """Logins may open ``files`` files."""

    name = "low-nofile"
    files: int = 256

    def apply(self) -> None:
        self.set_limits(nofile=f"{self.files}:{self.files}")

    def undo(self) -> None:
        self.restore_settings()


@dataclass
class DiskFull(Fault):
    """/tmp has 16 MiB and ``free_kib`` KiB of them free."""

    name = "disk-full"
    free_kib: int = 0

    def apply(self) -> None:
        self.inside(
            "mount -o remount,size=16m /tmp\n"
            f"free=$(df --output=avail -k /tmp | tail -n 1)\nfill=$((free - {self.free_kib}))\n"
            '[ "$fill" -le 0 ] || dd if=/dev/zero of=/tmp/core.4711 bs=1k count="$fill" status=none'
        )

    def undo(self) -> None:
        self.inside("rm -f /tmp/core.4711; mount -o remount,size=32g /tmp")


@dataclass
class ReadOnlyRoot(Fault):
    """The root file system and root's home are mounted read-only; /tmp and /dev/shm are writable."""

    name = "read-only-root"

    def apply(self) -> None:
        self._remount("ro")

    def undo(self) -> None:
        self._remount("rw")

    def _remount(self, mode: str) -> None:
        for place in (self.host.home, "/etc", "/"):
            self.inside(f"mount -o remount,bind,{mode} {place}")


@dataclass
class HangingNvidiaSmi(Fault):
    """The NVIDIA driver hangs: there is a GPU's device node, and neither nvidia-smi nor NVML ever answers."""

    name = "hanging-nvidia-smi"

    def apply(self) -> None:
        self.write(self.host.bin / "nvidia-smi", "#!/bin/sh\nexec sleep 3600\n", 0o755)
        # Opening a FIFO that nobody writes to blocks for ever, and so does loading it as a library.
        self.inside(
            "mknod /dev/nvidiactl c 195 255\nmknod /dev/nvidia0 c 195 0\n"
            f"mkdir {self._library()}\nmkfifo {self._library()}/libnvidia-ml.so.1"
        )
        self.set_environment(LD_LIBRARY_PATH=self._library())

    def undo(self) -> None:
        self.restore_settings()
        super().undo()
        self.inside(f"rm -rf {self._library()} /dev/nvidiactl /dev/nvidia0")

    def _library(self) -> str:
        return f"{self.host.directory}/hanging-library"


CLOCK = """\
import time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + {seconds}
time.time_ns = lambda: real_ns() + {seconds} * 10**9
"""


@dataclass
class ClockOffset(Fault):
    """The host's wall clock, as every Python there reads it, is ``seconds`` ahead (negative: behind).

    Linux has no namespace for the wall clock. (libfaketime also breaks sleeps and time limits of what runs under it.)
    """

    name = "clock-offset"
    seconds: int = 30

    def apply(self) -> None:
        self.inside(f"mkdir -p {self._directory()}")
        self.write(self._directory() / "sitecustomize.py", CLOCK.format(seconds=self.seconds))
        self.set_environment(PYTHONPATH=str(self._directory()))

    def undo(self) -> None:
        self.restore_settings()
        super().undo()
        self.inside(f"rm -rf {self._directory()}")

    def _directory(self) -> Path:
        return self.host.directory / "clock"
