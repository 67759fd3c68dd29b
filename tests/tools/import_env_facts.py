"""Write nccl_doctor/env/data/{nccl,torch,nobody}.json from the reference facts (../shared/facts).

Run it after the facts change: ``python tests/tools/import_env_facts.py [FACTS_DIRECTORY]``. These three files are
machine-made and never edited by hand; what people know better or add stands in ``curated.yaml`` beside them and wins
when both are read (nccl_doctor/env/knowledge.py). tests/unit/env/test_knowledge.py holds that nothing got lost.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "nccl_doctor" / "env" / "data"
FACTS = Path(__file__).resolve().parents[3] / "shared" / "facts"

# The newest NCCL release tag (source read) and the newest binary (strings and parameters read, no source).
NCCL_SOURCE = "NCCL release sources 1.2.1 to 2.30.7, every tag read"
NCCL_BINARY = "NCCL binaries 2.31.2 and 2.32.3 (no source published): parameters found in the library"
TORCH_SOURCE = "PyTorch wheels 1.6.0 to 2.15.0 (each X.Y.0): shared libraries, C++ headers, Python sources"
NOBODY_SOURCE = "in no NCCL release source 1.2.1-2.30.7, no NCCL binary to 2.32.3 and no PyTorch wheel 1.6-2.15"

# C names that stand for a default in the sources, with their value (nccl.h, collectives.h at the tags concerned).
CONSTANTS = {
    "NCCL_CONFIG_UNDEF_INT": "unset",
    "DEFAULT_BUFFER_SIZE_BYTES": "4194304",
    "NCCL_THREAD_THRESHOLD": "32",
    "DEFAULT_MIN_NRINGS": "0 (4 on IBM Power)",
    "SHM_RECV_SIDE": "2",
    "SHM_SEND_SIDE": "1",
    "INT64_MAX": "9223372036854775807",
    "NCCL_WORK_FIFO_BYTES_DEFAULT": "1048576",
    "NCCL_GIN_MAX_CONTEXTS": "4",
    "MAXCHANNELS": "64",
}


def version_of(tag: str | None) -> str:
    """``v2.24.3-1`` -> ``2.24.3``; empty for None."""
    match = re.match(r"v?(\d+(?:\.\d+)+)", tag or "")
    return match[1] if match else ""


def plain(expression: Any) -> str:
    """A default as one would type it: C constants and shifts computed, everything else as it is."""
    text = str(expression)
    if text in CONSTANTS:
        return CONSTANTS[text]
    compact = re.sub(r"(?<=\d)[uUlL]+", "", text).replace(" ", "")
    if match := re.fullmatch(r"(\d+)<<(\d+)", compact):
        return str(int(match[1]) << int(match[2]))
    if re.fullmatch(r"\d+(\*\d+)+", compact):
        product = 1
        for factor in compact.split("*"):
            product *= int(factor)
        return str(product)
    return text


def history(rows: list[dict[str, Any]], key: str) -> list[list[str]]:
    """``[[version, default], ...]`` in order, equal neighbours folded; empty where the default never changed."""
    steps = [[version_of(row["from"]), plain(row[key])] for row in rows]
    folded = [step for place, step in enumerate(steps) if place == 0 or steps[place - 1][1] != step[1]]
    return folded if len(folded) > 1 else []


def dense(row: dict[str, Any]) -> dict[str, Any]:
    """The row without empty fields."""
    return {key: value for key, value in row.items() if value not in ("", None, [], False)}


def nccl_rows(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Every variable of every NCCL release, and those seen only in newer binaries."""
    gone = set(facts["removed_in_binary_2_32_3"])
    rows = []
    for item in facts["variables"]:
        steps = item["default_history"]
        if item.get("binary_defaults"):  # the newest source and the newer binaries disagree: the change is in a binary
            steps = list(steps) or [{"from": item["first_tag"], "default_expr": item["default"]}]
            for release, value in sorted(item["binary_defaults"].items()):
                if version_of(release) > "2.31":
                    steps = [*steps, {"from": release, "default_expr": "unset" if value == -(2**31) else value}]
        steps = history(steps, "default_expr")
        rows.append(
            dense(
                {
                    "name": item["name"],
                    "reader": "NCCL"
                    if "core" in item["read_by"]
                    else f"NCCL's example or test code ({item['category']})",
                    "first": version_of(item["first_tag"]),
                    "last": "2.31.2" if item["name"] in gone else version_of(item["last_tag"]),
                    "type": item["type"],
                    "default": steps[-1][1] if steps else plain(item["default"]),
                    "history": steps,
                    "documented": item["documented"],
                    "category": item["category"],
                    "harm": item["harm"],
                    "meaning": item["notes"],
                    "source": NCCL_SOURCE,
                }
            )
        )
    for item in facts["binary_only_newer_than_newest_tag"]:
        defaults = item["default"] or {}
        newest = sorted(defaults)[-1] if defaults else ""
        rows.append(
            dense(
                {
                    "name": item["name"],
                    "reader": "NCCL",
                    "first": item["first_binary"],
                    "last": "" if item["in_2_32_3"] else "2.31.2",
                    "type": "int" if isinstance(defaults.get(newest), int) else "string",
                    "default": str(defaults[newest]) if newest else "",
                    "category": "binary-only",
                    "meaning": item["notes"] or "Found in the library of this release; its source is not published.",
                    "source": NCCL_BINARY,
                }
            )
        )
    return sorted(rows, key=lambda row: row["name"])


def torch_rows(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Every variable PyTorch reads for distributed work."""
    rows = []
    for item in facts["variables"]:
        steps = item.get("recorder_ring_default_history") or item.get("default_history_mechanical") or []
        successor = re.match(r"([A-Z0-9_]+)(?: \(([0-9.]+)\))?", item.get("replaced_by") or "")
        rows.append(
            dense(
                {
                    "name": item["name"],
                    "reader": "PyTorch",
                    "first": version_of(item["first_version"]),
                    "last": version_of(item["last_version"]),
                    "type": item["type"],
                    "default": "" if item["default"] is None else plain(item["default"]),
                    "history": history(steps, "default"),
                    "documented": item["documented"],
                    "category": item["category"],
                    "harm": item["harm"],
                    "replaced_by": successor[1] if successor else "",
                    "replaced_in": (successor[2] or "") if successor else "",
                    "meaning": item["notes"],
                    "source": TORCH_SOURCE,
                }
            )
        )
    return sorted(rows, key=lambda row: row["name"])


def nobody_rows(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Names that are widely set and that nothing reads, with the truth where there is more to say than that."""
    rows = []
    for item in facts["names_that_do_not_exist"]:
        truth = "" if item["truth"].startswith("Read by no NCCL tag") else item["truth"]
        real = re.match(r"Real names? (NCCL_[A-Z0-9_]+|TORCH_[A-Z0-9_]+)", truth)
        rows.append(
            dense(
                {
                    "name": item["name"],
                    "truth": truth,
                    "instead": real[1] if real else "",
                    "source": NOBODY_SOURCE,
                }
            )
        )
    return sorted(rows, key=lambda row: row["name"])


def build(facts: Path) -> dict[str, list[dict[str, Any]]]:
    """The content of the three files, by file name."""
    nccl = json.loads((facts / "nccl_env.json").read_text())
    torch = json.loads((facts / "torch_env.json").read_text())
    return {"nccl.json": nccl_rows(nccl), "torch.json": torch_rows(torch), "nobody.json": nobody_rows(torch)}


def main() -> None:
    """Write the files."""
    facts = Path(sys.argv[1]) if len(sys.argv) > 1 else FACTS
    for name, rows in build(facts).items():
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (DATA / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
