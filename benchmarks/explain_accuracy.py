"""How often ``explain`` names the right cause, on a directory of labelled logs.

    python benchmarks/explain_accuracy.py --corpus DIR [--part tune|validate|held-out] [--form FORM] [--wrong]

A case is a directory with ``log.txt`` and ``case.json`` (``cause``, ``acceptable``, ``decisive_line``,
``undecidable_from_log``; where they are told also ``ranks`` and ``hosts``, those to blame). Printed per label and overall: top-1
(the first cause is ``cause`` or in ``acceptable``), top-3, evidence (the quoted evidence contains the decisive line), false alarms on
``healthy``, the confusions, and how often the first cause, where it is right, blames exactly whom the case tells.
``--part`` takes one part of the cases only (see :func:`part_of`); ``--form`` gives the logs as somebody gets them who does not
have the files: copied out of a terminal of 80 columns, or handed out by a log service (:data:`FORMS`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource, Verdict


def _terminal(lines: list[str]) -> list[str]:
    return [line[at : at + 80] for line in lines for at in range(0, max(1, len(line)), 80)]


def _times(lines: list[str]) -> list[str]:
    """One every tenth of a second."""
    return [
        f"2026-01-02T{at // 36000:02}:{at // 600 % 60:02}:{at // 10 % 60:02}.{at % 10}00Z" for at in range(len(lines))
    ]


def _google(lines: list[str]) -> list[str]:
    fields = (
        {"severity": "ERROR", "textPayload": line, "timestamp": at}
        for at, line in zip(_times(lines), lines, strict=True)
    )
    return [json.dumps({"insertId": "1x", **record}) for record in fields]


FORMS: dict[str, Callable[[list[str]], list[str]]] = {
    "terminal": _terminal,
    "google": _google,
    "csv": lambda lines: [
        f'{1767312000000 + 100 * at},"{line.replace(chr(34), 2 * chr(34))}"' for at, line in enumerate(lines)
    ],
    "newest-first": lambda lines: [f"{at} {line}" for at, line in zip(_times(lines), lines, strict=True)][::-1],
}


@dataclass
class Score:
    """What was counted over a set of cases."""

    cases: int = 0
    top1: int = 0
    top3: int = 0
    evidence: int = 0
    false_alarms: int = 0
    healthy: int = 0
    wrong: list[str] = field(default_factory=list)
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    who: dict[str, Counter[str]] = field(default_factory=lambda: {"ranks": Counter(), "hosts": Counter()})
    per_label: dict[str, list[int]] = field(default_factory=dict)


def part_of(name: str) -> str:
    """Which part of the corpus a case belongs to, by a hash of its name.

    ``tune`` (half) was read while the signatures were written, ``validate`` (a quarter) only after its number had been
    taken, ``held-out`` (a quarter) never.
    """
    return ("tune", "validate", "tune", "held-out")[int(hashlib.sha256(name.encode()).hexdigest(), 16) % 4]


def judge(case: dict[str, Any], got: Explanation) -> tuple[bool, bool, bool]:
    """Right at first, right among three, decisive line quoted."""
    wanted = {case["cause"], *case["acceptable"]}
    ids = [cause.id for cause in got.causes]
    quotes = [item.text for cause in got.causes[:1] for item in cause.evidence] + [item.text for item in got.evidence]
    seen = any(case["decisive_line"].strip() in text for text in quotes)
    if got.verdict is Verdict.HEALTHY:
        ok = "healthy" in wanted
        return ok, ok, seen
    if case.get("undecidable_from_log") and got.verdict is Verdict.UNDECIDED:
        ok = bool(wanted & set(ids))
        return ok, ok, seen
    return bool(ids[:1] and ids[0] in wanted), bool(wanted & set(ids[:3])), seen


def blame(wanted: Iterable[object], got: Iterable[object]) -> str:
    """How those named compare with those to blame; domains and case make no other host."""
    right, named = ({_bare(who) for who in some} for some in (wanted, got))
    if right == named:
        return "exact"
    if not named:
        return "nobody"
    return "others" if right and not right & named else "more or fewer"


def _bare(who: object) -> str:
    name = str(who).lower()
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def run(corpus: Path, part: str = "", form: str = "") -> Score:
    """Explain every case and count."""
    score = Score()
    for path in sorted(corpus.glob("*/case.json")):
        if part and part_of(path.parent.name) != part:
            continue
        case = json.loads(path.read_text(encoding="utf-8"))
        log = (path.parent / "log.txt").read_bytes()
        if form:
            lines = log.decode("utf-8", "surrogateescape").replace("\r\n", "\n").removesuffix("\n").split("\n")
            log = "".join(f"{line}\n" for line in FORMS[form](lines)).encode("utf-8", "surrogateescape")
        got = analyse([LogSource("log.txt", log)])
        top1, top3, seen = judge(case, got)
        first = got.causes[0].id if got.causes else got.verdict.value
        score.cases += 1
        score.top1 += top1
        score.top3 += top3
        score.evidence += seen
        if case["cause"] == "healthy":
            score.healthy += 1
            score.false_alarms += got.verdict in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED) and not top1
        for kind, told in score.who.items():
            if top1 and kind in case and case["cause"] not in ("healthy", "unrelated"):
                told[blame(case[kind], getattr(got.causes[0], kind))] += 1
        counts = score.per_label.setdefault(case["cause"], [0, 0, 0, 0])
        for index, value in enumerate((1, top1, top3, seen)):
            counts[index] += value
        if not top1:
            score.confusion[(case["cause"], first)] += 1
        if not (top1 and top3 and seen):
            named = " ".join(f"{cause.id}={cause.confidence:.2f}" for cause in got.causes[:4])
            score.wrong.append(
                f"{path.parent.name:14} {'1' if top1 else '-'}{'3' if top3 else '-'}{'e' if seen else '-'} "
                f"wanted {case['cause']}  got {got.verdict.value}: {named}"
            )
    return score


def show(score: Score, label: str) -> None:
    """Print one result."""
    if not score.cases:
        print(f"{label}: no cases")
        return
    print(
        f"{label}: {score.cases} cases  top-1 {score.top1 / score.cases:6.1%}  top-3 {score.top3 / score.cases:6.1%}  "
        f"evidence {score.evidence / score.cases:6.1%}  false alarms {score.false_alarms}/{score.healthy} healthy"
    )
    for kind, told in score.who.items():
        if told:
            rest = ", ".join(f"{count} {how}" for how, count in told.most_common() if how != "exact")
            print(f"  {kind} to blame: {told['exact']} of {told.total()} exactly; {rest or 'no other'}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--part", choices=("tune", "validate", "held-out"), default="")
    parser.add_argument("--form", choices=FORMS, default="")
    parser.add_argument("--wrong", action="store_true", help="list the cases that were not fully right")
    parser.add_argument("--brief", action="store_true", help="only the totals")
    options = parser.parse_args()
    score = run(options.corpus, options.part, options.form)
    if options.wrong:
        print("\n".join(score.wrong))
    if not options.brief:
        print(f"{'label':28} cases top-1 top-3 evidence")
        for name, (cases, top1, top3, seen) in sorted(score.per_label.items()):
            print(f"{name:28} {cases:5} {top1:5} {top3:5} {seen:8}")
        print("confusions (wanted -> got):")
        for (wanted, got), count in score.confusion.most_common():
            print(f"  {count:3}  {wanted} -> {got}")
    show(score, options.part or "all")


if __name__ == "__main__":
    main()
