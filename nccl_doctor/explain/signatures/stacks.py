"""Stacks that somebody took of hanging processes: py-spy and Python's faulthandler."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

_PROCESS = re.compile(r"\bProcess \d+: \S")
_DEBUGGERS_FRAME = re.compile(
    r"\s*(?:\* )?(?:frame )?#\d+"
)  # gdb's, and lldb's with a star at the one that is selected

says(
    "stack-process",
    "Process {pid:int}: {command}",
    "hread {pid:hex} (most recent call first)",
    why="py-spy or faulthandler: the stacks of this process, or of this thread, follow.",
    where=lambda groups, line: "command" not in groups or _PROCESS.search(line) is not None,
)
says(
    "stack-timer",
    "Timeout ({after})!",
    rows=2,
    why="faulthandler.dump_traceback_later: the program's own timer ran out; the stack of this process follows.",
    where=lambda groups, line: re.fullmatch(r"\d+:\d\d:\d\d(?:\.\d+)?", groups["after"]) is not None,
)
says(
    "stack-frame",
    "(torch/distributed/distributed_c10d.py:{line:int})",
    '/torch/distributed/distributed_c10d.py", line {line:int} in {function}',
    why="A thread stands in a call of torch.distributed, innermost frame first.",
)
says(
    "stack-main",
    'hread {id} ({state}): "MainThread"',
    rows=24,
    why="py-spy: what the main thread of this process does, innermost frame first.",
)
says(
    "stack-debugger",
    "stop reason = signal SIGSTOP",
    "(gdb) bt",
    "(gdb) thread apply",
    " (Thread 0x{thread:hex} (LWP {pid:int})",  # newer: the name of the thread behind it
    why="lldb or gdb was attached to a process; the stack of this thread follows.",
)
says(
    "stack-abort",
    "ncclCommAbort",
    why="A thread's stack leads through ncclCommAbort.",
    where=lambda groups, line: _DEBUGGERS_FRAME.match(line) is not None or "(libnccl" in line,
)
says(
    "stack-mpi",
    "in PMPI_{call:word}",
    "in MPI_{call:word}",
    "`PMPI_{call:word}",  # lldb's
    "`MPI_{call:word}",
    why="A thread's stack leads through a call of MPI.",
    where=lambda groups, line: _DEBUGGERS_FRAME.match(line) is not None,
)
says(
    "stack-bootstrap",
    "bootstrapRoot",
    "bootstrapInit",
    why="A thread's stack leads through the bootstrap, in which all ranks of a communicator meet.",
    where=lambda groups, line: _DEBUGGERS_FRAME.match(line) is not None or "(libnccl" in line,
)
