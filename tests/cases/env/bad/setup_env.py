import os

os.environ["NCCL_P2P_DISABLE"] = "1"
os.environ["NCCL_TIMEOUT"] = "1800"
os.environ["NCCL_IB_TIMEOUT"] = 22
os.environ.setdefault("NCCL_SOCKET_IFNAME", "^docker0")
os.environ.update({"NCCL_ALGO": "Tree", "NCCL_BLOCKING_WAIT": "1"})
os.environ.update(NCCL_LL_THRESHOLD="0")
os.putenv("NCCL_DEBUG", "VERBOSE")
env = dict(os.environ, NCCL_SHM_DISABLE="1")
env["NCCL_NVLS_DISABLE"] = "1"
if os.environ.get("FAST"):
    os.environ["NCCL_IB_DISABLE"] = "1"
else:
    os.environ["NCCL_IB_HCA"] = "=mlx5_0"
