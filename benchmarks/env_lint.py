"""How fast ``env lint`` reads: 1,000 launch scripts, beside reading the same files without looking at them.

``python benchmarks/env_lint.py [FILES]``. The files are the test cases, copied with small changes. Times depend on the
machine; the ratio (how many times longer than reading the bytes and than splitting them into words) does much less.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nccl_doctor.env import examine, knowledge

CASES = Path(__file__).resolve().parents[1] / "tests" / "cases" / "env"


def make(directory: Path, count: int) -> int:
    """Write ``count`` files; returns their size in bytes."""
    sources = [path for path in sorted(CASES.rglob("*")) if path.is_file() and path.name != "expected.txt"]
    size = 0
    for number in range(count):
        source = sources[number % len(sources)]
        target = directory / f"{number:04d}" / source.name
        target.parent.mkdir()
        # As long as a real launch script: the case, and a hundred lines that set nothing of ours.
        comment = "" if source.suffix == ".json" else "".join(f"# line {line} of {number}\n" for line in range(100))
        body = source.read_text() + comment
        size += len(body.encode())
        target.write_text(body)
    return size


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def words(paths: list[Path]) -> None:
    """What the cheapest honest parser does: the standard library's shell words, line by line."""
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                shlex.split(line, comments=True)
            except ValueError:
                continue


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    knowledge.load()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        size = make(directory, count)
        paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        reading = min(timed(lambda: [path.read_bytes() for path in paths]) for _ in range(3))
        splitting = timed(lambda: words(paths))
        rounds = [timed(lambda: examine.examine([name])) for _ in range(3)]
        result = examine.examine([name])
    best = min(rounds)
    told = f"{len(result.assignments)} assignments, {len(result.remarks)} findings"
    print(f"{len(paths)} files, {size / 1e6:.1f} MB, {told}")
    print(f"read only        {reading:7.3f} s")
    print(f"shlex, by line   {splitting:7.3f} s")
    print(f"env lint         {best:7.3f} s   (worst of 3: {max(rounds):.3f} s)")
    print(f"ratio            {best / reading:.0f} x reading, {best / splitting:.2f} x shlex")


if __name__ == "__main__":
    main()
