"""Sets what must be set, reads the rest."""

import datetime
import os

import torch.distributed as dist

os.environ.setdefault("NCCL_DEBUG", "WARN")
os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "900"
TIMEOUT = int(os.environ.get("NCCL_TIMEOUT", 1800))  # our own use of the name, read here


def main() -> None:
    if os.environ.get("CLUSTER") == "alpha":
        os.environ["NCCL_NET"] = "IB"
    else:
        os.environ["NCCL_IB_DISABLE"] = str(0)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=TIMEOUT))


if __name__ == "__main__":
    main()
