"""Starts the ranks. Do not set NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 here: they were for a broken switch."""

import os

ENV_VARS = {name: os.environ.get(name, "") for name in ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_BLOCKING_WAIT")}


def environment(rank: int) -> dict[str, str]:
    env = dict(os.environ)
    env.pop("NCCL_ASYNC_ERROR_HANDLING", None)
    env.update({"RANK": str(rank), "NCCL_DEBUG": env.get("NCCL_DEBUG", "WARN")})
    if "NCCL_ALGO" in env:
        print(f"NCCL_ALGO={env['NCCL_ALGO']} is set; NCCL_PROTO={env.get('NCCL_PROTO')}")
    return env
