"""Effects: lines that follow from something else. They are counted and folded; alone they only make candidates."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

S = Role.SYMPTOM
# A process of the job, not a helper command ("git describe: exit status 128").
_SAYS_EXIT = re.compile(r"(?<=exited) with status")  # a shell's wording: who ended stands before it
_ITS_PROCESS = re.compile(
    r"rank|work|(?<!sub)(?<!Called)process|\bpid\b|task|actor|contain|child|replica|trainer|exit ?code|\bpython|\.py\b(?!:)|\bstep \d",
    re.IGNORECASE,
)

says(
    "watchdog-timeout",
    "Watchdog caught collective operation timeout",
    "Caught collective operation timeout",
    "timeout watchdog detected operation timeout",
    "collective operation timed out",
    "timeout: WorkNCCL({work}) ran for {ms:int} milliseconds before timing out",  # another process wrote into the line
    "NCCLX operation timed out",  # TorchComms, 2026
    "RCCLX operation timed out",
    "NCCL operation timed out",  # nccl2, the backend of PyTorch 2.15
    "] Operation timed out after {ms:int} ms",
    "Work timed out during finalize",
    role=S,
    cause="app.straggler-timeout",
    strength=0.32,
    fold="watchdog time-out",
    title="collectives timed out: a rank did not arrive, or the data did not",
    why="This rank waited in vain. The culprit is usually a rank that does not print it.",
)
says(
    "watchdog-status",
    "failure detected by watchdog at work sequence id: {sequence:int} PG status: last enqueued work: {enqueued:int}, last completed work: {completed:int}",
    "detected by watchdog at work: {sequence:int}, last enqueued NCCL work: {enqueued:int}, last completed NCCL work: {completed:int}",
    "ast enqueued NCCL work: {enqueued:int}, last completed NCCL work: {completed:int}",
    "PG status: last enqueued work: {enqueued:int}, last completed work: {completed:int}",
    role=S,
    cause="app.straggler-timeout",
    strength=0.3,
    fold="watchdog status",
    title="a rank's watchdog gave up waiting for a collective: a rank did not arrive, or the data did not",
    why="Where this rank stood: what it had enqueued and completed.",
)
says(
    "watchdog-down",
    "Some NCCL operations have failed or timed out",
    "we are taking the entire process down",
    "Process group watchdog thread terminated with exception",
    "NCCL watchdog thread terminated with exception",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "Aborting process on rank {rank:int} due to",  # nccl2
    "Aborting process due to timeout",  # nccl2 of 2.14, also where the program itself asked for an abort
    role=S,
    fold="watchdog took the process down",
    why="Always follows an error or a time-out.",
)
says(
    "uncaught-exception",
    "terminate called after throwing an instance of '{type}'",
    "what():  {what}",
    role=S,
    fold="an uncaught exception ended the process",
    why="The C++ library's last words: of torch's watchdog, of torch's or of the program's own code.",
)
says(
    "timeout-frame",
    "ProcessGroupNCCL::WorkNCCL::checkTimeout",
    role=S,
    fold="native stack of torch's watchdog",
    why="torch's watchdog throws this exception when a collective runs into its time-out.",
)
says(
    "symmetric-signal-timeout",
    "CUDASymmetricMemory::{call:word} rank {waiting:int} failed to {what} signal {}rank {peer:int} on channel",
    role=S,
    fold="torch's symmetric memory waits for other ranks in vain",
    why="A kernel of torch's symmetric memory got no signal from a peer in time, and traps; each rank that waits says so.",
)
says(
    "deepep-timeout",
    "DeepEP {what}timeout",
    role=S,
    fold="DeepEP waits for other ranks in vain",
    why="A kernel of DeepEP (or its host side) got no tokens from a peer in time; each rank that waits says so.",
)
says(
    "collective-stack",
    "Stack trace of the failed collective:",
    rows=24,
    why="torch's watchdog tells, innermost frame first, from where the program called the collective that timed out.",
)
says(
    "heartbeat",
    "monitoring thread detects no heartbeat",
    "Heartbeat monitor timed out",
    "watchdog got stuck for {seconds:int} seconds",
    "watchdog got stuck for",
    "watchdog hang",
    "Could not acquire GIL within",
    role=S,
    cause="app.straggler-timeout",
    strength=0.3,
    fold="heartbeat monitor",
    title="the watchdog thread itself hung (a CUDA call or Python's GIL blocked it)",
    why="The watchdog thread hung in a CUDA call or on the GIL.",
)
says(
    "dump-signal",
    "Observed flight recorder dump signal from another rank",
    "Received a dump signal due to a collective timeout",
    "detected a dump signal from rank",
    "Received a global dump signal",
    role=S,
    fold="dump signals",
    why="A rank asked the others to dump; it names the rank that timed out first.",
)
says(
    "recorder-dumped",
    "Finished writing Flight Recorder debug info to {path}",
    "FlightRecorderHook: dumping trace on collective failure",  # nccl2
    role=S,
    fold="flight recorder dumps",
    why="The flight recorder of this rank writes down what the rank has enqueued and completed, for explain to read.",
)
says(
    "dump-flag",
    'Failed to check the "should dump" flag on TCPStore',
    "TCPStore check for dump key",
    "flag on TCPStore, (maybe TCPStore server has shut down too early)",
    role=S,
    fold="store gone (dump flag)",
    why="The store's host has gone before this rank: secondary.",
)
says(
    "store-closed",
    "recvValue failed on SocketImpl",
    "sendBytes failed on SocketImpl",
    "recvValueWithTimeout failed on SocketImpl",
    "recvVector failed on SocketImpl",
    "Connection was likely closed. Did the remote server shutdown or crash",
    "recvBytes failed on SocketImpl",
    "failed to recv, got {received:int} bytes",
    "[c10d] Read callback failed. code:",
    role=S,
    cause="net.peer-lost",
    strength=0.3,
    fold="TCPStore connection lost",
    title="the process that held the TCPStore (rank 0 or its agent) went away",
    why="The store's process (rank 0 or the agent of the first node) exited or was cut off: secondary.",
)
says(
    "store-out-of-step",
    "Stop_waiting response is expected",
    "wait_canceled response is expected",
    role=S,
    cause="launch.rdzv",
    strength=0.46,
    fold="the store answered something else",
    title="the store's answer does not fit the question: another version of torch there, or another program on its port",
    why="A client of the TCPStore reads what its protocol does not have at this point; a connection that broke in the middle looks the same.",
)
says(
    "comm-aborted",
    "communicator was aborted",
    "communicator was revoked",
    "has been destroyed or aborted",
    "(root should be in the 0..-1 range)",
    role=S,
    cause="app.straggler-timeout",
    strength=0.28,
    title="the communicator was aborted after a time-out or an error that is not in these logs",
    fold="communicator aborted",
    why="A later call on a communicator that the watchdog had aborted.",
)
says(
    "peer-closed",
    "Connection closed by remote peer {peer}",
    "Connection closed by remote peer",
    "Socket unexpectedly closed",
    role=S,
    cause="net.peer-lost",
    strength=0.38,
    fold="Connection closed by remote peer",
    title="a peer closed its connection: it died or aborted first",
    why="The OTHER process died or aborted first; look for its first error.",
)
says(
    "ras-peer-dead",
    "RAS declaring peer {peer} as DEAD",
    "RAS connect retry timeout ({}on socket connection with {peer}",
    "] PEER_DEAD: {peer}",
    "] PEER_TIMEOUT_DEAD: {peer}",
    '"event": "PEER_DEAD"',
    role=S,
    cause="net.peer-lost",
    strength=0.62,
    fold="NCCL's RAS lost a peer",
    title="NCCL's RAS has declared a peer dead: {peer}",
    why="For a minute nothing answered at the peer's address: its process or its host is gone, or the network to it. Its own log says why.",
)
says(
    "ras-peer-silent",
    "RAS keep-alive timeout {}on socket connection with {peer}",
    "RAS send stuck timeout error ({}on socket connection with {peer}",
    "] PEER_UNRESPONSIVE: {peer}",
    "] PEER_KEEPALIVE_TIMEOUT: {peer}",
    "] PEER_SEND_STUCK: {peer}",
    role=S,
    cause="net.peer-lost",
    strength=0.36,
    fold="NCCL's RAS waits for a peer",
    title="NCCL's RAS gets no answer from a peer: {peer}",
    why="A peer's RAS thread is silent: it may recover. Where it is declared dead later, it is gone.",
)
says(
    "gloo-closed",
    "Connection closed by peer [{address}]",
    "Read error [{address}]",
    "Connection reset by peer",
    "Connection reset by remote peer",  # UCX
    "CommClosedError: ",  # Dask
    '"grpc_message":"Socket closed"',
    "Broken pipe",
    "Remote peer closed the connection",
    "Application timeout caused pair closure",
    "Connection closed by peer",
    role=S,
    cause="net.peer-lost",
    strength=0.38,
    fold="connection lost (Gloo, store or socket)",
    title="connections to a peer were lost: it died, or something on the way cut them",
    why="Gloo or a socket lost a peer.",
    where=lambda groups, line: "[c10d - debug]" not in line,  # a client of the store has left, at the end of a job, too
)
says(
    "proxy-failed",
    "[Proxy Service {}] Failed to execute operation",
    "Socket recv failed while polling for opId",
    "[Service thread] ",
    "ncclProxyCallBlocking",
    "Proxy Call to rank",
    "proxyConnect",
    "ncclProxyClientGetFd call to",
    role=S,
    fold="NCCL proxy errors",
    why="The proxy thread reports what failed before.",
    # Both also at every orderly end; a peer that is really gone is told by those who wait for it.
    where=lambda groups, line: (
        "Connection closed by localRank" not in line and "Accept failed Resource temporarily" not in line
    ),
)
says(
    "fatal-comm",
    "communicator encountered a fatal error",
    "ncclAsyncJobComplete: job",
    "ncclCommSetAsyncError",
    "commReclaim: ",
    "hit async error on rank",
    "Async error on rank",
    "timeout watchdog detected operation error",  # TorchComms
    "nccl hit async error: ",
    "NCCL WARN GIN Error detected",
    role=S,
    fold="communicator in error state",
    why="The communicator recorded an error that was reported before.",
)
says(
    "sigterm-workers",
    "closing signal SIGTERM",
    "Sending process",
    role=S,
    fold="SIGTERM by torchrun",
    why="The agent stops the other workers after one failed, or after it was told to stop.",
)
says(
    "signal-exit",
    "Signal 15 (SIGTERM) received by PID",
    "`Termination signal` is detected by the operating system",  # Paddle
    "exitcode: -15",
    "exit code 143",
    "exit code: 143",
    "with code 143",
    role=S,
    fold="terminated by SIGTERM",
    why="The process was stopped from outside: a victim.",
)
says(
    "colossalai-failed",
    "Error: failed to run torchrun",
    role=S,
    cause="app.rank-exception",
    strength=0.4,
    fold="the launcher reports a failed process",
    title="colossalai's launcher says that torchrun failed, and not why",
    why="colossalai run starts torchrun on each host (over ssh elsewhere) and swallows what it said: start that torchrun there by hand.",
)
_ENDED_BY_ITS_ENGINE = re.compile(r"WorkerProcess pid \d+ died, exit code: -15")  # vLLM's, when it ends itself
says(
    "child-terminated",
    "Child process with PID {pid:int} terminated with code {code:int}",
    "Container rank {rank:int} status failed cmd {command} code {code:int} log",  # Paddle's launcher
    "Forcefully terminating all other processes to avoid zombies",
    "died, exit code: {code:int}",
    "exits with return code = {code:int}",
    "terminated with exit code {code:int}",
    "exited with code {code:int}",
    "exited with exit code: {code:int}",
    "crashed with exit code {code:int}",
    "exited with exit code {code:int}",
    "exited with a non-zero status of {code:int}",  # Vertex AI, AI Platform
    "exited with non-zero status {code:int}",
    "exit status {code:int}",
    "exited with status {code:int}",
    "Exit Code:    {code:int}",
    "Exit Code: {code:int}",
    "Exit code: {code:int}",
    '"exitCode": {code:int}',
    '"exitCode":{code:int}',
    role=S,
    fold="the launcher reports a failed process",
    why="A launcher (Lightning, vLLM, an operator) saw a child end; why is in that child's own lines.",
    where=lambda groups, line: (
        groups.get("code") != "0"
        and _ENDED_BY_ITS_ENGINE.search(line) is None
        and bool(_ITS_PROCESS.search(_SAYS_EXIT.split(line)[0]))
    ),
)
says(
    "sigabrt-exit",
    "Signal 6 (SIGABRT) received by PID",
    "`Process abort signal` is detected by the operating system",  # Paddle
    "Aborted (core dumped)",
    "exitcode  : -6",
    "exitcode: -6",
    "return code = -6",
    "exit code -6",
    "died with <Signals.SIGABRT",
    role=S,
    fold="aborted (SIGABRT)",
    why="The watchdog (or std::terminate) ended the process.",
)
says(
    "mpi-abort",
    "mpirun detected that one or more processes exited",
    "MPI_ABORT was invoked",
    "Primary job  terminated normally, but",
    "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "srun: error: {}: task {}: Exited with exit code",
    "srun: error: {}: tasks {}: Exited with exit code",
    "Terminating StepId=",
    "launched step has been terminated",
    "Horovod detected that one or more processes exited with non-zero status",
    "Job step aborted: Waiting up to",
    role=S,
    fold="the launcher reports a failed process",
    why="The launcher saw a process end with an error.",
)
says(
    "mpi-first-to-exit",
    "Process name: [[{job}],{rank:int}]",
    rows=1,
    why="Open MPI: which process was the first to end with an error; its exit code stands in the next line.",
)
says(
    "monitored-barrier",
    "[Rank 0]: Rank {missing:int} failed to pass monitoredBarrier",
    "Rank {missing:int} timed out in monitoredBarrier",
    "Ranks {missing} failed to pass monitoredBarrier",
    "failed to pass monitoredBarrier",
    role=S,
    fold="monitoredBarrier",
    why="Names the rank that did not arrive; why it did not is in that rank's own lines.",
)
says(
    "barrier-wrapper",
    "Monitored Barrier encountered error running collective",
    role=S,
    fold="monitored barrier of the debug wrapper",
    why="TORCH_DISTRIBUTED_DEBUG=DETAIL: a rank did not arrive at this collective.",
)
says(
    "socket-timeout",
    "Socket Timeout",
    "wait timeout after {}ms, keys: {keys}",
    "Timed out waiting {} for recv operation to complete",
    "Timed out waiting {} for send operation to complete",
    "Timed out waiting {}ms for",
    "waitForInput: socket {} timed out after",
    "waitForInput: poll for socket {} returned 0, likely a timeout",
    "While waitForInput, poolFD failed with (errno: 0 - ",
    "NCCL timeout in: ",
    "aborting after {hours:int}:{minutes:int}:{seconds:num}!",  # torchft
    "NCCL timeout when waiting for nonblocking call",
    role=S,
    cause="app.straggler-timeout",
    strength=0.34,
    fold="store or Gloo time-out",
    title="a rank waited for another one that did not come in time",
    why="A key or message did not come: another rank is late, dead or never came.",
)
says(
    "unique-id",
    "store->get('{key}') got error",
    "retrieving ncclUniqueId from [0] via c10d key-value store",
    "This may indicate a possible application crash on rank 0 or a network set up issue",
    "frame #{frame:int}: c10d::ProcessGroupNCCL::broadcastUniqueNCCLID(",  # a frame of what a store's get() threw
    role=S,
    cause="net.peer-lost",
    strength=0.33,
    fold="ncclUniqueId not received from rank 0",
    title="rank 0 did not publish the communicator's id: it died, or never created that group",
    why="Rank 0 died or never created that group, or the store is unreachable.",
)
says(
    "ddp-zero-params",
    "has inconsistent 0 params",
    role=S,
    fold="DDP: inconsistent 0 params",
    why="The other rank's answer never came (its buffer is still zero): an effect of a failed or mismatched collective, not a model difference.",
)
says(
    "ray-wrapper",
    "ray.exceptions.RayTaskError",
    "ray.exceptions.RayActorError",
    "ActorDiedError",
    "The actor died unexpectedly before finishing this task",
    "WorkerCrashedError",
    "Engine core initialization failed",
    "EngineDeadError",
    "EngineCore encountered an issue",
    "EngineCore encountered a fatal error",
    "EngineCore failed to start",
    "Engine process failed to start",
    "Engine core proc {name:word} died unexpectedly",
    "A worker died or was killed while executing",
    "Received sigquit from a child process. It usually means the child failed",  # SGLang
    "ray.exceptions.RayChannelError: System error: Channel closed",
    "OwnerDiedError",
    "Executor worker returned error",  # TensorRT-LLM
    "Trials did not complete",
    role=S,
    fold="an actor or engine reports that a worker failed",
    why="Wrapping of a worker's failure.",
)
says(
    "rdzv-consequence",
    "has failed to shutdown the rendezvous",
    "failed to send a keep-alive heartbeat to the rendezvous",
    "has failed to send a keep-alive",
    "RendezvousGracefulExitError",
    role=S,
    cause="launch.rdzv",
    strength=0.3,
    fold="agents lost the rendezvous",
    title="the agents lost the rendezvous store",
    why="The store's host is gone: usually after the job had failed.",
)
says(
    "deadlock-detected",
    "DeadLock detected from rank",
    role=S,
    fold="Lightning: an exception of one rank",
    why="Lightning (1.4 to 1.9) ends the other ranks when one raised: that rank's exception is in the message.",
)
says(
    "signal-end",
    "Signal {number:int} ({name:word}) received by PID {pid:int}",
    role=Role.FACT,
    why="torchrun's table: the signal that ended a process.",
)
says(
    "spawn-exit",
    "ProcessExitedException: process {index:int} terminated with",
    "ProcessRaisedException",
    "-- Process {index:int} terminated with the following error",
    role=S,
    fold="a spawned process ended",
    why="torch.multiprocessing.spawn reports a child's end.",
)
says(
    "subprocess-failed",
    "subprocess.CalledProcessError: Command",
    "Killing subprocess {pid:int}",
    role=S,
    fold="the launcher reports a failed process",
    why="An old launcher or DeepSpeed's runner saw a worker end.",
)

says(
    "barrier-innocent",
    "successfully reached monitoredBarrier, but received errors",
    "Please check rank 0 logs for faulty rank",
    role=S,
    fold="monitoredBarrier: innocent ranks",
    why="This rank arrived; rank 0's lines name the missing one.",
)
says(
    "grpc-unavailable",
    "failed to connect to all addresses",
    "UNAVAILABLE: ",
    role=S,
    cause="net.master-unreachable",
    strength=0.45,
    fold="gRPC cannot connect",
    title="the coordinator or GCS does not answer",
    why="gRPC could not reach its peer: dead, not started yet, or blocked.",
    where=lambda groups, line: (
        "heartbeat timeout" not in line  # the coordinator itself tells of another task
        and "tasks are unhealthy" not in line
        and "preemption notice from coordination service" not in line
        and "RPC to coordination service" not in line
        and " UNAVAILABLE: Internal: " not in line  # a model in Triton's table
    ),
)
says(
    "triton-model-not-loaded",
    "creating server: Internal - failed to load all models",
    "failed to load '{model}' version {version:int}: {reason}",
    role=S,
    cause="unrelated",
    strength=0.42,
    fold="Triton could not load a model",
    title="Triton ends as it could not load a model: {reason}",
    why="Triton's own line on the model, or its table's row, says why; what the backend printed stands before it.",
)
says(
    "ray-terminated",
    "The process receives a SIGTERM",
    role=S,
    cause="launch.killed",
    strength=0.46,
    fold="Ray's workers were told to end",
    title="a worker of Ray was told to end (SIGTERM)",
    why="The raylet says which signal came, not who sent it: the driver's end or ray stop, the scheduler, or Ray's memory monitor.",
)
says(
    "ray-vanished",
    "Worker unexpectedly exits with a connection error code 2. End of file",
    "Worker proc {name:word} died unexpectedly, shutting down executor",  # vLLM
    "Engine core proc {name:word} died unexpectedly, shutting down client",
    role=S,
    cause="sys.host-oom",
    strength=0.42,
    fold="a worker's process vanished",
    title="a worker's process vanished without a word of its own: memory, SIGKILL or a crash",
    why="The raylet, or vLLM's executor, only saw it end. The kernel log (oom-killer) or the worker's own log says why.",
)
says(
    "worker-failed",
    "WorkerProc failed to start",
    "WorkerProc initialization failed",
    "Worker failed with error",
    "WorkerProc hit an exception",
    "Executor failed",
    "Failed core proc",
    "RuntimeError: Engine",
    "Worker exit type: SYSTEM_ERROR",
    "worker process has died",
    "Scheduler hit an exception",
    "Rank {} scheduler is dead",
    "Subprocess {} died",
    "Child process unexpectedly failed",
    "Detokenizer{}exception",
    role=S,
    fold="a serving engine reports that a worker failed",
    why="Wrapping of a worker's failure.",
)
says(
    "no-step-seen",
    "o step for {seconds:num}s",
    "o progress for {seconds:num}s",
    "o step finished for {seconds:num} s",
    "no training step for {seconds:num} s",
    "no progress in the last {seconds:num} s",
    role=S,
    cause="app.straggler-timeout",
    strength=0.3,
    title="the job made no step for {seconds} s",
    fold="a watcher saw no step",
    why="A trainer's own watcher says that the job stands still; whose fault that is, it does not know.",
)
says(
    "torchrun-failed",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "Root Cause (first observed failure)",
    role=S,
    fold="torchrun's failure table (its root cause is only the first process that exited)",
    why="torchrun's summary: the entry with the smallest time stamp on that node, often a victim.",
)
says(
    "torchrun-exit",
    "failed (exitcode: {code:int}) local_rank: {local:int} (pid: {pid:int}) of binary",
    role=S,
    fold="torchrun saw a worker exit",
    why="A worker ended; why is in that worker's own lines.",
)
says(
    "nccl-error-text",
    "NCCL error in: {place}, {text}, NCCL version",
    "NCCL error in: {place}, {text}",
    "NCCL error {place} '{text}'",
    "NCCL operation {place} failed: {text}",  # XLA
    "NCCL failure :{text}",  # XGBoost
    "NCCL error({code:int}), {text}",  # Paddle
    "Nccl error, {text}",  # Paddle before 2.2
    "NCCL_ERROR: b'{text}'",  # RAPIDS
    "call='nccl{call}', Reason={code:int}:{text}",  # raft
    "nccl{call:word} failed: {text}",  # Horovod
    "NCCL_ERROR_{name:word}: {text}",  # CuPy
    "unhandled cuda error",  # NCCL's own words for its codes (ncclGetErrorString), whichever program repeats them
    "unhandled system error",
    "internal error - please report this issue to the NCCL developers",
    "invalid usage (run with NCCL_DEBUG",
    "invalid argument (run with NCCL_DEBUG",
    "ncclSystemError: System call",
    "ncclRemoteError: A call failed",
    "ncclInternalError: Internal check failed",
    "ncclUnhandledCudaError: Call to CUDA",
    "ncclInvalidUsage: This usually",
    "ncclInvalidArgument: Invalid value",
    "Test NCCL failure",
    role=S,
    fold="a call of NCCL failed",
    why="A program (torch, XLA, Horovod, Paddle, a serving engine) repeats NCCL's code: the WARN line of that process before it says what happened.",
)
says(
    "nccl-trail",
    "NCCL INFO {place:word} -> {code:int}",
    role=S,
    fold="NCCL's return trail",
    why="An error on its way up through NCCL's functions; the WARN before it is the origin.",
    where=lambda groups, line: ":" in groups["place"] and groups["code"] not in ("0", "7"),
    # a file and its line; with the first digit, for a literal of three bytes makes the search for all of them slower
    wake=(".cc:", ".cpp:", ".cu:", *(f".{kind}:{digit}" for kind in "ch" for digit in range(1, 10))),
)
says(
    "nccl-abort",
    " rank {rank:int} nranks {nranks:int} cudaDev {device} busId {bus:hex} - Abort COMPLETE",
    "Abort COMPLETE",
    "Abort START",
    "Revoke START",
    "Revoke COMPLETE",
    role=S,
    fold="communicators aborted",
    why="Somebody called ncclCommAbort (or ncclCommRevoke), usually torch's watchdog after an error.",
)
