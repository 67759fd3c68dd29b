"""Run probes by name in this process and print their results as JSON: what an agent would send."""

from __future__ import annotations

import json
import sys

from nccl_doctor.agent import probing, runtime


def main() -> None:
    """Arguments: one JSON object, probe name -> its arguments."""
    runtime.import_probes()
    wanted = json.loads(sys.argv[1])
    answers = {name: runtime.run_probe(name, arguments, {}) for name, arguments in wanted.items()}
    assert set(wanted) <= set(probing.PROBES)
    print(json.dumps(answers))


main()
