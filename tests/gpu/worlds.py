"""Real NCCL worlds on this machine: where there are fewer GPUs than ranks, all on GPU 0, each claiming its own host.

NCCL refuses two ranks on one GPU of one host. With NCCL_HOSTID distinct per rank it takes them for several hosts, and
runs over its network transport: sockets over this machine's interfaces.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.agent.collective import launch
from nccl_doctor.bench.model import Collector, Results
from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import LogSource
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.redaction import redact_text

ROOT = Path(__file__).resolve().parents[2]
BACKEND = os.environ.get("NCCL_DOCTOR_REHEARSAL", "nccl")  # gloo: try these tests' own code where there is no GPU
# Up to 2.30.7 (init.cc) NCCL compares the GPUs of ranks on one host only, and those of a NCCL_HOSTID each are on several. A
# release that compares all of them would want to be told that it is meant, as 2.30 lets one on one host.
ON_ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
Events = Callable[[dict[str, Any]], None]


@functools.cache  # where nothing keeps the driver up, each call of nvidia-smi starts it anew
def gpus() -> int:
    """GPUs of this machine, by nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return done.stdout.count("GPU ") if done.returncode == 0 else 0


def run(
    ranks: int = 2, on_event: Events = lambda event: None, distinct: bool = True, env: dict[str, str] | None = None,
    master_port: int = 0, **plan: Any,
) -> tuple[Collectives, Results]:  # fmt: skip
    """A world from start to end. ``distinct``: every rank claims a host of its own."""
    collector = Collector(ranks)

    def take(event: dict[str, Any]) -> None:
        collector.take(event)
        on_event(event)

    defaults = {
        "collectives": ["allreduce"], "sizes": [1 << 20], "backend": BACKEND, "iters": 10, "warmup": 2,
        "limit_s": 30.0, "budget_s": 30.0, "same_gpu": gpus() < ranks,
    }  # fmt: skip
    claims = {"NCCL_HOSTID": "rank{rank}"} if distinct else {}
    data = launch.launch(
        {
            "plan": {**defaults, **plan}, "world": ranks, "first_rank": 0, "local_world": ranks,
            "master_addr": "127.0.0.1", "master_port": master_port or launch.free_port(), "python": sys.executable,
            "env": {**ON_ONE_GPU, **(env or {})}, "env_per_rank": claims, "limit_s": 150.0,
        },
        take,
    )  # fmt: skip
    return msgspec.convert(data, Collectives), collector.results()


def record(name: str, fact: Collectives, cause: str, evidence: str) -> None:
    """With NCCL_DOCTOR_RECORD=DIRECTORY, keep what the ranks printed as a case for ``explain``, without this machine's
    names and addresses. Beside it what ``explain`` made of it now: who takes the case over decides which is right."""
    directory = os.environ.get("NCCL_DOCTOR_RECORD")
    if not directory:
        return
    from tests.incidents.record import trimmed

    ends = fact.ranks
    texts = {f"rank{end.rank}.log": trimmed(neutral(end.output), 40_000) for end in ends}
    found = analyse(
        [
            LogSource(name, text, end.rank, f"node{end.rank}")
            for (name, text), end in zip(texts.items(), ends, strict=True)
        ]
    )
    said = ", ".join(f"{item.id} {item.confidence:.2f}" for item in found.causes[:3]) or "nothing"
    head = ["---", f"name: {name}", f"cause: {cause}", "acceptable: []", f"evidence: '{evidence}'", "undecidable: false",
            "source: recorded on one GPU with NCCL_HOSTID (tests/gpu); explain then said "
            f"{found.verdict.value}: {said}", "---"]  # fmt: skip
    blocks = [f"```log {rank}\n{text.rstrip()}\n```\n" for rank, text in texts.items()]
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / f"{name}.md").write_text("\n".join(head) + "\n" + "\n".join(blocks))


def neutral(text: str) -> str:
    """A log without secrets, and without this machine's name, addresses, paths and ids of its hardware."""
    text = redact_text(text)
    for place, name in ((sys.prefix, "/opt/python"), (sys.base_prefix, "/opt/python3"), (str(ROOT), "/srv")):
        text = (
            text if place in ("/", "/usr", "/usr/local") else text.replace(place, name)
        )  # those hold more than Python
    for name in {socket.gethostname(), socket.getfqdn()}:
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "node01", text)
    text = re.sub(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", "GPU-00000000-0000-0000-0000-000000000000", text)
    numbers: dict[str, str] = {}

    def address(match: re.Match[str]) -> str:
        found = match.group(0)
        if found.startswith(("127.", "0.0.0.0", "255.")):
            return found
        return numbers.setdefault(found, f"10.0.0.{len(numbers) + 1}")

    def address6(match: re.Match[str]) -> str:
        found = match.group(0)
        try:
            packed = ipaddress.IPv6Address(found).packed
        except ValueError:
            return found  # a time, a PCI address
        usual = packed[:14] == bytes(14) or found == "fe80::1"  # ::, ::1, and the one from above
        return found if usual else numbers.setdefault(found, f"2001:db8::{len(numbers) + 1}")

    text = re.sub(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", address, text)
    text = re.sub(r"\bfe80::[0-9a-f:]+", "fe80::1", text)
    return re.sub(r"(?<![\w:.])[0-9a-fA-F]{1,4}:[0-9a-fA-F:]{1,34}(?![\w:])", address6, text)
