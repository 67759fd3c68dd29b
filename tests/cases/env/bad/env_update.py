import os
import subprocess

os.environ.update(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo,eth0")
os.environ |= {"NCCL_NTHREADS": "512", "OMP_NUM_THREADS": "8"}
for key, value in {"NCCL_MAX_NCHANNELS": "1", "NCCL_MIN_NCHANNELS": "4"}.items():
    os.environ[key] = value
os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = 1800
env = {**os.environ, "NCCL_DEBUGG": "INFO"}
subprocess.run(["torchrun", "train.py"], env=env, check=True)
subprocess.run("NCCL_SHM_DISABLE=1 torchrun eval.py", shell=True, check=True)
