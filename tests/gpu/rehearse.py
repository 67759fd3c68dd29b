"""``python -m tests.gpu.rehearse OUT [STEP ...]``: session.sh where there is no GPU, so that GPU time is not spent on its own faults.

An H200 that is made up three times: for the probes (tests/hardware_kit), for nvidia-smi and for torch (tests/cuda_stand_in);
nvcc and nccl-tests are shell scripts. Every step must run and be told; of the tests, those that look into NCCL's log, or
at times, cannot pass. Takes five minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.hardware_kit.machines import Machine

ROOT = Path(__file__).resolve().parents[2]
SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-555555555555)" ;;
  "--query-gpu=name "*) echo "NVIDIA H200" ;;
  *--query-compute-apps*) ;;
  "") echo "Serial Number : 1650000000001" ;;
  *) exec "{stub}" "$@" ;;
esac
"""
MAKEFILE = "build:\n\tfor name in $(BIN_FILES_LIST); do cp ../perf $(BUILDDIR)/$${name}_perf; done\n"
# One row in nccl-tests' 13 columns for the size behind -b, a hundred microseconds each.
PERF = r"""#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -b ] && size=$2; shift; done
echo "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
echo "$size 1 float sum -1 100.0 1.0 1.0 0 100.0 1.0 1.0 0"
"""


def program(path: Path, text: str) -> None:
    """A file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def main() -> int:
    """Make everything up, and run the session over it."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        machine = Machine.alone(here / "machine")
        machine.write()
        program(here / "bin/nvidia-smi", SMI.format(stub=machine.directory / "bin/nvidia-smi"))
        program(here / "bin/nvcc", "#!/bin/sh\nexit 0\n")
        program(here / "nccl-tests/perf", PERF)
        program(here / "nccl-tests/src/Makefile", MAKEFILE)
        environment = {
            **machine.environment(),
            "PATH": os.pathsep.join([str(here / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "tests/cuda_stand_in"),
            "PYTHON": sys.executable,
            "STAND_IN_GPUS": "1",
            **({"STEPS": " ".join(sys.argv[2:])} if sys.argv[2:] else {}),
        }
        session = ["sh", str(ROOT / "tests/gpu/session.sh"), sys.argv[1], str(here / "nccl-tests")]
        return subprocess.run(session, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
