"""``torchrun ... -m nccl_doctor.bench allreduce ...``, and the same under srun and mpirun: one rank of it."""

import importlib
import os
import sys

if __name__ == "__main__":
    os.environ["NCCL_DOCTOR_IN_JOB"] = "1"
    sys.argv[:] = [sys.argv[0], "bench", *sys.argv[1:]]
    # By name: the command line is above this room, and only this entry point reaches up to it.
    importlib.import_module("nccl_doctor.cli").main()
