"""The driver: provoke incidents, ask ``explain``, compare with what really happened."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.incidents import launch, record
from tests.incidents.catalogue import BY_NAME, INCIDENTS, Incident

Answer = dict[str, Any]


def explain(path: Path) -> Answer:
    """``nccl-doctor explain --format json`` as a user would call it."""
    command = [sys.executable, "-m", "nccl_doctor", "explain", "--format", "json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"explain printed nothing (exit {done.returncode}): {done.stderr[-500:]}")
    answer: Answer = json.loads(done.stdout)
    return answer


def wrong(incident: Incident, answer: Answer) -> str:
    """Why the answer is not right; empty if it is."""
    causes = [cause["id"] for cause in answer["causes"]]
    told = f"verdict {answer['verdict']}, causes {causes[:4]}"
    right = (incident.cause, *incident.acceptable)
    if incident.cause == "healthy":
        return "" if answer["verdict"] == "healthy" else f"a healthy run, but {told}"
    matching = [cause for cause in answer["causes"] if _fits(cause["id"], right)]
    if answer["verdict"] == "undecided" and incident.undecidable:
        return "" if matching else f"expected {incident.cause} among the candidates: {told}"
    if incident.cause == "unrelated" and answer["verdict"] == "not-a-distributed-failure":
        return ""
    if not causes or not _fits(causes[0], right):
        return f"expected {incident.cause}: {told}"
    quoted = "\n".join(item["text"] for item in answer["causes"][0]["evidence"])
    if incident.evidence and incident.evidence not in quoted:
        return f"{causes[0]} is right, but {incident.evidence!r} is not quoted: {quoted[:300]}"
    return ""


def _fits(found: str, right: tuple[str, ...]) -> bool:
    """Whether a cause is one of the right ones, or a finer one beneath it."""
    return any(found == wanted or found.startswith(wanted + ".") for wanted in right)


class Result:
    """How one incident went."""

    def __init__(self, incident: Incident, state: str, text: str, seconds: float) -> None:
        self.incident = incident
        self.state = state  # right, WRONG, BROKEN, skipped
        self.text = text
        self.seconds = seconds

    def line(self) -> str:
        return f"{self.state:8} {self.incident.name:34} {self.seconds:5.1f} s  {self.text}"


def attempt(incident: Incident, directory: Path, *, keep: bool, note: bool) -> Result:
    """Provoke one incident and judge the answer. The logs stay under ``directory`` if ``keep`` is set."""
    begun = time.monotonic()
    try:
        logs = launch.run(incident, directory / incident.name)
    except launch.Unable as error:
        return Result(incident, "skipped", str(error), time.monotonic() - begun)
    except (OSError, RuntimeError, TimeoutError) as error:
        return Result(incident, "BROKEN", str(error), time.monotonic() - begun)
    if note:
        record.write(incident, logs)
    try:
        answer = explain(logs)
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return Result(incident, "BROKEN", str(error)[-300:], time.monotonic() - begun)
    if keep:
        (directory / incident.name / "explain.json").write_text(json.dumps(answer, indent=1))
    reason = wrong(incident, answer)
    first = answer["causes"][0]["id"] if answer["causes"] else answer["verdict"]
    return Result(incident, "WRONG" if reason else "right", reason or first, time.monotonic() - begun)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if every answer is right (skipped incidents are named, and do not count as right)."""
    options = _options(arguments)
    chosen = [BY_NAME[name] for name in options.names] or list(INCIDENTS)
    with tempfile.TemporaryDirectory(prefix="incidents-") as scratch:
        directory = options.keep or Path(scratch)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            running = [
                pool.submit(attempt, incident, directory, keep=options.keep is not None, note=options.record)
                for incident in chosen
            ]
            results = []
            for future in running:
                results.append(future.result())
                print(results[-1].line(), flush=True)
    counts = {
        state: sum(result.state == state for result in results) for state in ("right", "WRONG", "BROKEN", "skipped")
    }
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 0 if counts["right"] and not counts["WRONG"] and not counts["BROKEN"] else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.incidents", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*sorted(BY_NAME), []], metavar="NAME", help="incidents; all if none"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and answers there")
    parser.add_argument("--record", action="store_true", help="rewrite the recorded cases of these incidents")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="incidents at a time")
    return parser.parse_args(arguments)
