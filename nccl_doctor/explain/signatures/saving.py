"""Writing checkpoints: what torch says when the file system takes no more."""

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
