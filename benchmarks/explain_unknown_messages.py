"""How far ``explain`` comes with a message that nobody taught it, on directories of labelled logs.

    python benchmarks/explain_unknown_messages.py --corpus DIR... [--half train|test] [--wrong]

Each failed case (as :mod:`explain_accuracy` reads them) is judged twice: as it is, and with the signatures withdrawn that
recognised the lines behind the right cause, as if these messages had never been taught; what is left is the general
vocabulary. Counted: the right cause is first (also where the verdict is undecided), among the first three, another cause is
found (harm), the failed log is called healthy or unrelated (worst). ``--half`` takes one half of the directories, by a hash of
their names: rules are written with ``train`` in view and judged by ``test``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nccl_doctor.explain import ranking
from nccl_doctor.explain.api import explain
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Explanation, LogSource, Verdict
from nccl_doctor.explain.readers.scan import scan
from nccl_doctor.explain.summary import Summary

# What any line of trouble is, whether or not its message is known.
_GENERAL = frozenset(("error-line", "nccl-warn"))
COUNTED = ("first", "three", "other", "calm")


def half_of(name: str) -> str:
    """Which half a directory of cases belongs to."""
    return ("train", "test")[int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2]


def without(summary: Summary, wanted: set[str]) -> Summary:
    """The same log, read by somebody who never heard of the messages that lead to one of the wanted causes."""
    case = Case(summary)
    behind = {hit.signature for item in ranking.rank(case) if item.id in wanted for hit in item.hits}
    behind |= {name for name in summary.groups if name in case.signatures and case.signatures[name].cause in wanted}
    behind = {*behind, *(f"{name}-rows" for name in behind)} - _GENERAL
    groups = {name: group for name, group in summary.groups.items() if name not in behind}
    tracebacks = [
        msgspec.structs.replace(item, known=tuple(name for name in item.known if name not in behind))
        for item in summary.tracebacks
    ]
    return msgspec.structs.replace(summary, groups=groups, tracebacks=tracebacks)


def counted(got: Explanation, wanted: set[str]) -> set[str]:
    """Which of :data:`COUNTED` this answer is."""
    ids = [cause.id for cause in got.causes]
    told = {"first"} if ids[:1] and ids[0] in wanted else set()
    if wanted & set(ids[:3]):
        told.add("three")
    if "first" not in told and got.verdict is Verdict.CAUSE_FOUND:
        told.add("other")
    if "first" not in told and got.verdict in (Verdict.HEALTHY, Verdict.NOT_DISTRIBUTED):
        told.add("calm")
    return told


def judge(path: Path) -> tuple[str, list[Counter[str]], str]:
    """One case: its directory's name, the counts as it is and with its messages unknown, and a line about the second."""
    case = json.loads(path.read_text(encoding="utf-8"))
    if case["cause"] == "healthy":
        return path.parent.parent.name, [], ""
    wanted = {case["cause"], *case["acceptable"]}
    summary = scan(LogSource("log.txt", (path.parent / "log.txt").read_bytes()))
    unknown = without(summary, wanted)
    answers = [explain(summary), explain(unknown)]
    found = [counted(answer, wanted) for answer in answers]
    named = " ".join(f"{cause.id}={cause.confidence:.2f}" for cause in answers[1].causes[:4])
    kinds = "".join(kind[0] if kind in found[1] else "-" for kind in COUNTED)
    line = f"{path.parent} {kinds} wanted {' '.join(sorted(wanted))}  got {answers[1].verdict.value}: {named}"
    return path.parent.parent.name, [Counter([*one, "cases"]) for one in found], line


def show(label: str, counts: Iterable[Counter[str]]) -> None:
    """Print one row."""
    known, unknown = counts
    cells = [f"{one[kind] / max(known['cases'], 1):6.1%}" for one in (known, unknown) for kind in COUNTED]
    print(f"{label:16} {known['cases']:5}  {' '.join(cells[:4])}   {' '.join(cells[4:])}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, nargs="+")
    parser.add_argument("--half", choices=("train", "test"), default="")
    parser.add_argument(
        "--wrong", action="store_true", help="list the cases whose cause is not first without its message"
    )
    options = parser.parse_args()
    sets = [path for path in options.corpus if not options.half or half_of(path.name) == options.half]
    cases = [case for path in sets for case in sorted(path.glob("*/case.json"))]
    tables: dict[str, list[Counter[str]]] = {}
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for name, found, line in pool.map(judge, cases, chunksize=8):
            for label in (name, "all") if found else ():
                for total, one in zip(tables.setdefault(label, [Counter(), Counter()]), found, strict=True):
                    total.update(one)
            if options.wrong and found and not found[1]["first"]:
                print(line)
    print(f"{'':23} as it is: {' '.join(f'{kind:6}' for kind in COUNTED)}   unknown: {' '.join(COUNTED)}")
    for label in sorted(tables, key=lambda name: (name == "all", name)):
        show(label, tables[label])


if __name__ == "__main__":
    main()
