"""JAX, XLA and torch_xla: the coordination service, XLA's communicators, the mesh service."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "jax-registration",
    "cluster registration failed",
    "Wait_for_all_tasks_to_register",
    "PjRT_Client_Connect",
    why="JAX's tasks had to register with the coordinator, and some did not.",
)
says(
    "jax-register-call",
    "CoordinationService/RegisterTask",
    why="The call by which a task of JAX registers with the coordinator; what came of it is in the lines beside it.",
)
says(
    "jax-coordinator",
    "Connecting to JAX distributed service on {address:word}",
    every=True,
    why="Where a process of JAX looks for the coordinator.",
)
says(
    "jax-barrier-count",
    "# of tasks that reached the barrier: {joined:int}/{world:int}",
    why="How many of JAX's tasks came to a barrier of the coordination service before it timed out; below it, who did not.",
    rows=6,
)
says(
    "coordination-service",
    "Polled an error from coordination service",
    "JAX distributed service detected fatal errors",
    "coordination service {}eartbeat",
    "CoordinationService",
    "Barrier timed out",
    "DEADLINE_EXCEEDED",
    "the other task died",
    "another task died",
    "tasks are unhealthy",
    "This suggests that the workers are out of sync",
    "Shutdown barrier in coordination service has failed",
    "Shutdown barrier has failed",
    "stopped sending heartbeats",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.36,
    fold="JAX coordination service",
    title="a task of the JAX or TensorFlow job died or stopped answering",
    why="JAX's coordination service lost a task; that task's own lines say why.",
    where=lambda groups, line: "unknown_target_for_coordination_leader" not in line,  # of one that leaves
)
says(
    "jax-leader-gone",
    "Failed to send RPC to coordination service",
    "Failed to retrieve preemption notice from coordination service",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.47,
    fold="JAX's leader is gone",
    title="task 0 of the JAX job, which coordinates the others, has ended or is not reached",
    why="Where all tasks had done their work it is only the end: task 0 left first. Else its own log tells why it ended.",
    where=lambda groups, line: "CANCELLED" not in line,
)
says(
    "jax-task-silent",
    "task:{task:int} heartbeat timeout",
    "/job:jax_worker/replica:{replica:int}/task:{task:int}",  # the list below "tasks are unhealthy"
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.5,
    fold="JAX coordination service",
    title="task {task} of the JAX job stopped answering its coordinator",
    why="Its process, its host or the network between died: that task's own log and the scheduler's events say which.",
    where=lambda groups, line: "heartbeat timeout" in line or re.search(r"/task:\d+\s*$", line) is not None,
)
says(
    "jax-unhealthy",
    "tasks are unhealthy (stopped sending heartbeats)",
    why="Below it the coordinator lists the tasks of which it hears nothing: since JAX 0.5 by their numbers alone.",
    rows=3,
)
says(
    "jax-heartbeat-missed",
    "Task {task:int} heartbeat timeout",
    why="The coordinator of JAX heard nothing of a task for too long.",
)
_XLA_ABORTS = (
    "Aborting communicator: {communicator} due to async NCCL error: {error}",
    "Aborting communicator: {communicator} due to error: {error}",
    "Terminating process due to async NCCL error: {error}",
    "Terminating process due to async GPU clique error: {error}",
)
_PEER_GONE = "remote process exited"
says(
    "xla-communicator",
    *_XLA_ABORTS,
    "Last NCCL error (maybe unrelated): {error}",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.52,
    fold="XLA's communicators aborted",
    title="a peer of XLA's communicators exited, or the network to it broke",
    why="XLA asks NCCL every 30 s for asynchronous errors: this process is the victim of another one or of the network. "
    "NCCL's own WARN of the process that failed first (NCCL_DEBUG=WARN) tells which.",
    where=lambda groups, line: _PEER_GONE in line,
)
says(
    "xla-nccl-error",
    *_XLA_ABORTS,
    role=Role.SYMPTOM,
    fold="XLA's communicators aborted",
    why="NCCL reported an error of its own in this process; its WARN lines (NCCL_DEBUG=WARN) tell which.",
    where=lambda groups, line: _PEER_GONE not in line,
)
says(
    "xla-rendezvous",
    "Termination timeout for `{what}` of {seconds:int} seconds exceeded. Exiting to ensure a consistent program state",
    "This thread has been waiting for `{what}` for {seconds:int} seconds and may be stuck",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.46,
    fold="XLA's threads wait for each other",
    title="threads of XLA waited for others of their process: {what}",
    why="All GPUs of one process meet before a collective or before communicators are made; one is late, stopped, or waits in another collective.",
)
says(
    "xla-process-leaves",
    "Coordination agent has initiated Shutdown()",
    why="A process of JAX has come to its end, or was told to, and leaves the others.",
)
says(
    "xla-process-left",
    "Coordination agent has successfully shut down",
    role=Role.END,
    why="The leader let this task of JAX go, and none was in error until then.",
)
says(
    "jax-own-shutdown",
    "unknown_target_for_coordination_leader while calling /tensorflow.CoordinationService/GetKeyValue",
    "Failed to retrieve preemption notice from coordination service: CANCELLED",
    'grpc_message":"CANCELLED","grpc_status":1}',
    role=Role.HARMLESS,
    why="A task of JAX that leaves cancels its own question for a preemption notice.",
)
says(
    "xla-newer-than-driver",
    "older than the PTX compiler version",
    role=Role.HARMLESS,
    why="XLA compiles one kernel at a time with a driver older than its compiler: the first steps take longer.",
)
says(
    "xla-registered-twice",
    "Unable to register {library} factory: Attempting to register factory for plugin",
    role=Role.HARMLESS,
    why="TensorFlow and XLA are both in the process and bring the same libraries: the first one's are used.",
)
says(
    "xla-unstuck",
    "Thread is unstuck! Warning above was a false-positive",
    role=Role.HARMLESS,
    why="XLA takes its warning of a stuck thread back: all came, later than it had expected.",
)
says(
    "xla-mesh-unreachable",
    "Failed to connect to client mesh master: {host}",
    "Check failed: impl_->channel->WaitForConnected(",
    cause="net.master-unreachable",
    strength=0.86,
    title="torch_xla's mesh service is not reached: {host}",
    why="The first process of xmp.spawn serves the others: it has ended, never began, or the call stands outside of xmp.spawn.",
)
says(
    "xla-mesh-lost",
    "Failed to meet rendezvous '{tag}': {error} (",
    "Failed to retrieve mesh configuration: {error} (",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.5,
    fold="torch_xla's first process is gone",
    title="torch_xla's first process, which the others meet at, is gone: {error}",
    why="Its own exception stands elsewhere in the output, often above; where host memory ran out, the kernel's log tells.",
)
says(
    "xla-clique-stale",
    "Incarnation id {id:int} is stale",
    "Task with incarnation id {id:int} is not connected",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.5,
    fold="XLA's tasks are gone",
    title="a task of the JAX job died or was started anew",
    why="The coordination service knows a task of this collective no more; that task's own lines say why.",
)
says(
    "tpu-refused",
    "TPU initialization failed: {error}",
    "TPU initialization failed:",
    "The TPU is already in use by process with pid {pid:int}",
    "libtpu.so already in use by another process",
    cause="gpu.not-visible",
    strength=0.88,
    title="the host's TPU cannot be used: {error}",
    why="Another process holds it (`sudo lsof -w /dev/accel0`, or below /dev/vfio), the process may not open its device, or libtpu finds other chips than it expects.",
)
says(
    "tpu-hosts-missing",
    "Did you run your code on all TPU hosts?",
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.46,
    fold="a TPU slice waits for its hosts",
    title="the TPU's slice does not come up: on some of its hosts the program does not run, or has failed",
    why="Each host of a slice must run the program. The log of a host that does not print this tells why.",
)
