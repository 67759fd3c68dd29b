"""Writing checkpoints and swapped tensors: what torch and DeepSpeed say when the file system takes no more."""

from __future__ import annotations

from nccl_doctor.explain.signatures import says

says(
    "zip-writer-cut-off",
    "unexpected pos {position:int} vs {expected:int}",
    "PytorchStreamWriter failed writing",
    "basic_ios::clear: iostream error",
    cause="sys.disk-full",
    strength=0.86,
    title="writing a checkpoint broke off: disk full, quota reached, or the file system failed",
    why="torch's zip writer found fewer bytes written than it had handed over. It passes no errno on: a full disk or a "
    "reached quota is the usual reason, a failing network file system the other one (df -h, df -i, quota).",
)
says(
    "swap-file-short",
    "buffer nbytes != file bytes",
    cause="sys.disk-full",
    strength=0.45,
    title="a swap file of ZeRO's NVMe offload is not as long as its tensor: disk full, a write that failed, or a file of another run",
    why="DeepSpeed reads back fewer (or more) bytes than it swapped out; its asynchronous writes do not all report that "
    "they failed. Empty the folder of nvme_path, look at its room (df -h) and whether its file system takes O_DIRECT.",
)
