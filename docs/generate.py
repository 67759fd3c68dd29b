"""Writes the generated pages (see :func:`pages`): `python docs/generate.py`. A test fails when they are stale."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import msgspec

from nccl_doctor.bench.estimate import Estimate
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.history.analyse import Analysis
from nccl_doctor.rules import hang, thresholds, watch
from nccl_doctor.rules.compare import Comparison
from nccl_doctor.rules.engine import ALL_STAGES, all_rules
from nccl_doctor.rules.judge import Report

DOCS = Path(__file__).resolve().parent


def exit_codes() -> str:
    """The published table."""
    rows = "\n".join(f"| {code.value} | {code.name.lower().replace('_', ' ')} | {code.meaning} |" for code in ExitCode)
    return (
        f"# Exit codes\n\nThe numbers never change their meaning.\n\n| code | name | meaning |\n|---|---|---|\n{rows}\n\n"
        "A reader that goes away (`nccl-doctor check | head`) changes nothing: the code is the verdict's. `run -- COMMAND`,\n"
        "and `preflight -- COMMAND` after a go, pass on the command's own code, 128 + N where signal N killed it, and with\n"
        "`--on-hang end` 11 or 12 where the job was ended as it hung (said on stderr). A report, bundle or history that\n"
        "`preflight` could not write leaves its decision's code; only a file of hosts gives 1.\n"
    )


def rules() -> str:
    """The catalogue: every rule under its stage, with its docstring and its finding ids."""
    parts = [
        "# Rules\n\nWhat `nccl-doctor check` looks at, in the order of its stages, and last what `nccl-doctor hang` (`job`)\n"
        "and `nccl-doctor watch` do. Each id has a playbook.\n"
    ]
    for stage in ALL_STAGES:
        parts.append(f"## {stage}\n")
        for rule in all_rules():
            if rule.stage == stage:
                ids = ", ".join(f"[`{id}`](../playbooks/{for_finding(id)}.md)" for id in rule.ids)
                parts.append(
                    f"### {rule.name}\n\n{inspect.cleandoc(rule.doc)}\n\nFindings: {ids or 'none, only gaps'}\n"
                )
    return "\n".join(parts)


def threshold_table() -> str:
    """Every line that rules draw: value, unit, why there, since when."""
    rows = "\n".join(
        f"| `{id}` | {row.value:.12g} | {row.unit} | {row.source} ({row.date}) |"
        for id, row in thresholds.defaults().items()
    )
    return (
        "# Thresholds\n\nWhere the [rules](rules.md) draw their lines. Published values disagree, and some are judgement: each can be\n"
        "replaced, by `--thresholds FILE` (YAML) of `check`, `preflight`, `report` and `diff`, or under `[thresholds]` of a\n"
        "[policy file](preflight.md#policy-file). An id that is not known is an error.\n\n"
        "```yaml\nshm.warn: 2147483648                # bytes\ngpu.ecc.corrected.warn: .inf        # never\n```\n\n"
        f"| id | value | unit | why there |\n|---|---|---|---|\n{rows}\n"
    )


def schema(kind: type[msgspec.Struct]) -> str:
    """The JSON schema of a document."""
    return json.dumps(msgspec.json.schema(kind), indent=2, sort_keys=True) + "\n"


def report_schema() -> str:
    """The schema of ``--format json``: the report's, with the notes parted from the findings and the playbook of each."""
    document = json.loads(schema(Report))
    parts = document["$defs"]
    findings = {**parts["Report"]["properties"]["findings"], "description": "what fails or warns"}
    parts["Report"]["properties"]["findings"] = findings
    parts["Report"]["properties"]["notes"] = {**findings, "description": "what is only worth knowing (severity info)"}
    parts["Report"]["required"] = sorted([*parts["Report"]["required"], "notes"])
    parts["Finding"]["properties"]["playbook"] = {
        "type": "string",
        "description": "id of the playbook; may be a parent's",
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def diff_schema() -> str:
    """The schema of ``diff --format json``: the comparison's, with the exit code."""
    document = json.loads(schema(Comparison))
    comparison = document["$defs"]["Comparison"]
    comparison["properties"]["exit_code"] = {
        "enum": [code.value for code in ExitCode],
        "description": "docs/exit-codes.md",
    }
    comparison["required"] = sorted([*comparison["required"], "exit_code"])
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def pages() -> dict[Path, str]:
    """Every generated page and what it must contain."""
    return {
        DOCS / "exit-codes.md": exit_codes(),
        DOCS / "rules.md": rules(),
        DOCS / "thresholds.md": threshold_table(),
        DOCS / "report.schema.json": report_schema(),
        DOCS / "bundle.schema.json": schema(Bundle),
        DOCS / "bench.schema.json": schema(Outcome),
        DOCS / "diff.schema.json": diff_schema(),
        DOCS / "history.schema.json": schema(Analysis),
        DOCS / "estimate.schema.json": schema(Estimate),
        DOCS / "hang.schema.json": schema(hang.Document),
        DOCS / "watch.schema.json": schema(watch.Document),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(DOCS.parent), file=sys.stderr)
