"""``nccl-doctor watch`` over real sshds: a rank that leaks, one that dies, a connection that is cut, a GPU that is hot or lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hardware_kit import machines

from . import machine
from .lab import Lab

LEAK = """
import time
kept = []
for _ in range(2000):  # 1 GB, and then it only waits
    kept.append(bytearray(500_000))
    time.sleep(0.1)
time.sleep(600)
"""
# What this machine has, and how busy it is, must decide nothing.
THRESHOLDS = """\
watch.samples: 2
watch.growth.samples: 12
watch.growth.share: 0.000001
watch.growth.fit: 0.2
watch.growth.horizon: .inf
watch.rank-ended: 2
"""


class Watching:
    """A watch that goes on, what it has told so far, and its answer once it is over."""

    def __init__(self, lab: Lab, directory: Path, *options: str) -> None:
        thresholds = directory / "thresholds.yaml"
        thresholds.write_text(THRESHOLDS)
        words = ["nccl-doctor", "watch", "--hosts", str(lab.hostfile), "--every", "0.5", "--format", "json"]
        self.process = lab.popen(
            [*words, "--thresholds", str(thresholds), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def wait_for(self, *words: str) -> None:
        """Until a line that was told has all these words."""

        def told() -> bool:
            return any(all(word in line for word in words) for line in list(self.lines))

        machine.wait_for(told, f"a line with {words} (told: {self.lines})", 120)

    def samples(self) -> int:
        """How many there are of every host that answers, by the last line that said so."""
        told = [found[1] for line in list(self.lines) if (found := re.search(r" (\d+) samples? of each", line))]
        return int(told[-1]) if told else 0

    def wait_for_samples(self, count: int) -> None:
        """Until there are so many."""
        machine.wait_for(lambda: self.samples() >= count, f"{count} samples (told: {self.lines})", 120)

    def wait_for_ranks(self, count: int) -> None:
        """Until so many were found: to look for them may take longer than the first samples."""

        def found() -> bool:
            told = [match[1] for line in list(self.lines) if (match := re.search(r" (\d+) ranks?$", line.rstrip()))]
            return bool(told) and int(told[-1]) >= count

        machine.wait_for(found, f"{count} ranks (told: {self.lines})", 120)

    def end(self, number: int = signal.SIGINT) -> dict[str, Any]:
        """What it answers when it is told to end."""
        os.kill(self.process.pid, number)
        out, _ = self.process.communicate(timeout=120)
        answer: dict[str, Any] = json.loads(out)
        assert answer["exit_code"] == self.process.returncode == 130
        return answer

    def kill(self) -> None:
        """Whatever has happened."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def found(answer: dict[str, Any], id: str, host: str) -> dict[str, Any]:
    """The one finding of this id on this host."""
    (item,) = [item for item in answer["findings"] if item["id"] == id and item["hosts"] == [host]]
    return dict(item)


@pytest.fixture
def ranks(lab: Lab) -> Iterator[dict[str, int]]:
    """Host -> pid of its rank: the first leaks, the others do nothing."""
    port = 29777 + lab.number
    shared = [f"MASTER_PORT={port}", "MASTER_ADDR=gpu01", "WORLD_SIZE=3", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"]
    idle = "import time; time.sleep(600)"
    pids = {
        host: lab.spawn(host, ["env", *shared, f"RANK={rank}", sys.executable, "-c", program])
        for rank, (host, program) in enumerate({"gpu02": LEAK, "gpu03": idle, "gpu01": idle}.items())
    }
    yield pids
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machine.end(pids.values())


def test_a_leak_a_dead_rank_and_a_cut_connection(lab: Lab, ranks: dict[str, int], tmp_path: Path) -> None:
    watching = Watching(lab, tmp_path, "--save", str(tmp_path / "watch.ndb"))
    try:
        watching.wait_for_ranks(len(ranks) * len(lab.hostnames))  # they share /proc: each finds all
        os.kill(ranks["gpu03"], signal.SIGKILL)
        watching.wait_for("gpu03", f"pid {ranks['gpu03']}", "has ended")
        for process in lab.processes("gpu04"):
            if process.arguments[:1] and process.arguments[0].startswith("sshd"):
                os.kill(process.pid, signal.SIGKILL)
        watching.wait_for("gpu04", "connection lost")
        watching.wait_for("gpu04", "answers again")
        watching.wait_for_samples(watching.samples() + 12)
        answer = watching.end()
    finally:
        watching.kill()
    assert answer["verdict"] == "faulty" and answer["reached"] == lab.hostnames
    grown = found(answer, "sys.host-oom.growing.rank", "gpu02")
    assert f"rank 0 (pid {ranks['gpu02']})" in grown["title"], grown
    gone = found(answer, "hang.rank-gone.ended", "gpu03")
    assert f"rank 1 (pid {ranks['gpu03']})" in gone["title"], gone
    cut = found(answer, "host.cut-off.while-watched", "gpu04")
    assert cut["severity"] == "warn" and "came back" in cut["title"], cut
    assert ["gpu04"] in [gap["hosts"] for gap in answer["unknown"] if gap["what"] == "the host's silent times"]
    again = lab.run(["nccl-doctor", "watch", "--from", str(tmp_path / "watch.ndb"), "--format", "json"])
    assert json.loads(again.stdout)["series"] == answer["series"]


@pytest.fixture
def hot(lab: Lab) -> Iterator[Path]:
    """gpu01's machine of eight busy GPUs that are not there: its directory."""
    place = lab.host("gpu01").directory / "hardware"
    made = machines.Machine(place)
    made.model = {**made.model, "utilization": "99", "power_mw": "400000", "clock_1": "1755"}
    try:
        made.write()
        shutil.copytree(machines.library(), place / "library")
        path = f"{place / 'bin'}:{lab.host('gpu01').environment()['PATH']}"
        root, nvml = str(place / "root"), str(place / "nvml.conf")
        lab.set_env(
            "gpu01", NCCL_DOCTOR_ROOT=root, NVML_STAND_IN=nvml, LD_LIBRARY_PATH=str(place / "library"), PATH=path
        )
        yield place
    finally:
        lab.set_env("gpu01", **dict.fromkeys(("NCCL_DOCTOR_ROOT", "NVML_STAND_IN", "LD_LIBRARY_PATH", "PATH")))
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
def test_a_gpu_that_gets_hot_one_that_is_lost_and_a_line_of_the_kernel_log(lab: Lab, hot: Path, tmp_path: Path) -> None:
    watching = Watching(lab, tmp_path)
    try:
        watching.wait_for_samples(1)
        new = hot / "nvml.new"
        heat = "gpu3.throttle_reasons=0x40\ngpu3.temperature_0=91\ngpu3.clock_1=990\n"
        new.write_text(heat + (hot / "nvml.conf").read_text())
        os.replace(new, hot / "nvml.conf")
        watching.wait_for("gpu01", "GPU 3 is throttled: hardware thermal slowdown, 91 C, SM clock 990 MHz")
        new.write_text("gpu5.temperature_0=lost\n" + (hot / "nvml.conf").read_text())
        os.replace(new, hot / "nvml.conf")
        watching.wait_for("gpu01", "GPU 5 does not answer the driver", "GPU is lost")
        up_s = float((hot / "root/proc/uptime").read_text().split()[0])
        with (hot / "root/dev/kmsg").open("a") as log:
            log.write(f"3,9,{1e6 * (up_s + 1):.0f},-;NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n")
        watching.wait_for("gpu01", "Xid (PCI:0000:4b:00): 79")
        watching.wait_for_samples(watching.samples() + 12)
        answer = watching.end(signal.SIGTERM)
    finally:
        watching.kill()
    assert found(answer, "gpu.thermal-power.hw-thermal", "gpu01")["places"] == [
        {"host": "gpu01", "gpu": "3 (0000:4b:00.0)"}
    ]
    assert "Xid 79" in found(answer, "gpu.fell-off-bus", "gpu01")["title"]
    lost = found(answer, "gpu.fell-off-bus.lost", "gpu01")
    assert lost["severity"] == "fail" and lost["title"].startswith("GPU 5 (0000:6b:00.0) was lost for "), lost
    (series,) = [one for one in answer["series"]["gpu01"]["gpus"] if one["index"] == 3]
    assert series["temperature_c"]["low"] < 91 == series["temperature_c"]["high"]
