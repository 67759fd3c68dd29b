"""JSON: the report of ``check``, with the gate's decisions beside it."""

from __future__ import annotations

import json

from nccl_doctor.facts.model import Bundle
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report, to_json


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One document: the keys of the check report, and ``go``, ``reason``, ``decisions``, ``chosen``, ``spares``."""
    data = json.loads(to_json(report))
    data["go"] = gate.go
    data["reason"] = gate.reason
    data["decisions"] = {item.host: {"state": item.state, "because": list(item.because)} for item in gate.decisions}
    data["chosen"] = list(gate.chosen)
    data["spares"] = list(gate.spares)
    return json.dumps(data, indent=2, sort_keys=True) + "\n"
