"""The host around the job: memory, limits, disks, containers, file systems, nodes."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "shm-no-space",
    "/dev/shm{}No space left on device",
    "posix_fallocate failed : No space left on device",
    "failed to extend /dev/shm",
    "failed to create shared memory file",
    "fallocate: Failed to extend {file} to",
    "insufficient shared memory (shm)",
    "out of shared memory (shm)",
    "unable to allocate shared memory(shm)",
    "unable to write to file </torch_",
    "unable to open shared memory object </torch_{name}> in read-write mode: No space left",
    "Bus error. It is possible that dataloader's workers are out of shared memory",
    "shm_open {}No space left",
    "Unable to allocate shared memory",
    "unable to mmap {} bytes from file </torch",
    "Call to ftruncate failed : No space left",
    "Call to shm_open failed",
    "No space left on device{}/dev/shm",
    cause="sys.shm",
    strength=0.95,
    title="/dev/shm is too small (or full)",
    why="A shared-memory segment cannot be created or extended: containers have 64 MB of /dev/shm by default.",
)
says(
    "shm-psm",
    "PSM could not set up shared memory segment",
    cause="sys.shm",
    strength=0.82,
    title="PSM (Omni-Path) cannot set up the shared memory between the processes of a host",
    why="/dev/shm is full, or the segment of a neighbour process is not there: it has ended, runs in another container, or something cleans /dev/shm.",
)
says(
    "shm-pmix",
    "PMIX ERROR: OUT-OF-RESOURCE in file {}dstore",
    "unable to create shared memory BTL coordinating structure",
    cause="sys.shm",
    strength=0.76,
    title="Open MPI or PMIx cannot make its shared segment in the session directory",
    why="It lies below TMPDIR: full, not writable, or another one inside of the container than outside. Mount the same there; PMIX_MCA_gds=hash does without PMIx's.",
)
says(
    "no-pci-path",
    "Could not find real path of /sys/class/pci_bus/{bus}",
    cause="sys.container",
    strength=0.78,
    title="NCCL does not find its GPU in /sys/class/pci_bus: a sandbox or container without it, or WSL2 under NCCL older than 2.10",
    why="NCCL follows the GPU's PCI path. Up to 2.9 its lack ends the initialisation; later what else it asks of /sys does.",
)
says(
    "shm-segment",
    "Error while {doing} shared memory segment",
    why="NCCL could not make, map or register a segment; up to 2.22 it does not say which.",
)
says(
    "bus-error",
    "exitcode  : -7",
    "exitcode: -7",
    "exitcode=-7",  # multiprocessing's own, as SGLang prints it
    "shutdown with signal 7 ",  # TGI's launcher
    "signal: bus error",  # programs in Go
    "return code = -7",
    "exit code: 135",
    "exit code 135",
    "Bus error",
    "`Access to an undefined portion of a memory object` is detected by the operating system",  # Paddle
    "SIGBUS",
    cause="sys.shm",
    strength=0.86,
    title="a process died of a bus error: usually /dev/shm ran full under it",
    why="A page of a shared-memory mapping could not be backed: /dev/shm is full. (Rarely: a truncated memory-mapped file.)",
)
says(
    "unit-bus-error",
    "status=7/BUS",
    cause="sys.shm",
    strength=0.45,
    title="a unit of systemd died of a bus error: if it is the job's, /dev/shm ran full under it",
    why="systemd tells how a unit's process ended, and not whether it is the job's.",
)
says(
    "too-many-files",
    "oo many open files",
    "EMFILE",
    "received 0 items of ancdata",
    "Errno 24",
    "system limit exceeded on number of pipes that can be open",  # Open MPI
    "system limit exceeded on number of network connections that can be open",
    cause="sys.nofile",
    strength=0.95,
    title="too many open files",
    why="The process reached its limit of open files (ulimit -n).",
    where=lambda groups, line: "This can cause fd limit errors" not in line,  # vLLM's notice at its start
)
says(
    "threads",
    "pthread_create failed",
    "pthread_create returns 11",  # oneCCL
    "can't start new thread",
    "Thread creation failed",
    "fork: retry: No child processes",
    "Cannot fork",
    "failed to create new OS thread",
    "unable to start new thread",
    "cgroup: fork rejected by pids controller",
    "RLIMIT_NPROC",
    "system limit exceeded on number of processes that can be started",  # Open MPI
    "esource temporarily unavailable",
    cause="sys.threads",
    strength=0.93,
    title="no more threads or processes can be created (EAGAIN)",
    why="pthread_create or fork returned EAGAIN: the user's process limit, the cgroup's pids limit, or the container's.",
    where=lambda groups, line: (
        # what std::thread throws has no other words
        bool(
            re.search(r"thread|fork|NPROC|pids|clone|process|BlockingIOError", line, re.IGNORECASE)
            or re.search(r"(?:RuntimeError|what\(\)): +Resource temporarily unavailable\W*$", line)
        )
        and not re.search(r"accept|recv|send|connect|propagate", line, re.IGNORECASE)
    ),  # sockets that need no answer now, Slurm's limits
)

# --- host memory
# "Detected 0 oom_kill events", "oom_kill 0" (memory.events), "oom-kill events: 0"
# What a program that runs other programs (graders, sandboxes) tells of theirs.
QUOTED_OUTPUT = re.compile(r"\breturncode=|\bstd(?:err|out)=[\"']")
_NOBODY_KILLED = re.compile(
    r"\b(?:0|no) oom[-_]kill|oom[-_]kill(?: ?event\w{0,20}|s)?[ =:]+0\b|oomkilled\W{1,4}false", re.IGNORECASE
)
says(
    "oom-killer",
    "Out of memory: Kill",
    "oom-kill",
    "emory cgroup out of memory",
    "OOMKilled",
    "oom_kill event",
    "Some of your processes may have been killed by the cgroup out-of-memory handler",
    "OUT_OF_ME",
    "running low on memory",
    "exceeds the memory usage threshold",
    "Killed process {pid:int} ({name})",
    "exceeded memory limit, being killed",
    "Exceeded job memory limit",
    "xceeded step memory limit",
    "TERM_MEMLIMIT",
    "job killed: mem",
    "job killed: vmem",
    "mem {used} exceeded limit",
    "earlyoom{}sending SIG",
    "systemd-oomd killed",
    "MemoryError",
    "not enough memory: you tried to allocate",
    "annot allocate memory",
    "std::bad_alloc",
    "SystemOOM",
    "The node was low on resource: memory",
    "TaskOOM",
    "Memory usage on the node",
    "ran out-of-memory and exited with",  # Vertex AI, AI Platform
    "Job exceeded a memory resource limit",  # Torque
    "due to memory pressure",
    "killed by the memory monitor",
    "Container killed on request. Exit code is 137",
    "reached its memory limit",
    "memory allocation of {size:int} bytes failed",  # Rust: tokenizers, safetensors
    "Unable to allocate {size} for an array",
    "Memory limit exceeded",
    "oom_reaper: reaped process",
    "Killed (out of memory)",
    "beyond the 'PHYSICAL' memory limit",  # YARN, and before Hadoop 3
    "running beyond physical memory limits",
    "ontainer killed by YARN for exceeding",  # Spark
    "exceeds memory limit",
    "Detected {count:int} oom",
    "OOM Killed",
    "runtime.OOMController",  # Talos's own
    "OOM killed",
    "exceeded virtual memory limit",
    "Out Of Memory",
    cause="sys.host-oom",
    strength=0.95,
    title="the host (or its memory cgroup) ran out of memory",
    why="The kernel, the cgroup or Kubernetes killed a process for want of host memory; or an allocation of host memory failed.",
    where=lambda groups, line: (
        not re.search(
            r"ibv_|mlx5dv_|\bfi_\w+\(|fi_mr_reg|register|\bOFI\b|CUDA|cuda|(?i:\b(?:qp|cq|srq|pd|mr)s?\b)|QP|reg_mr|CQ|potential root causes|OutOfMemoryError(?!: Task)|"
            r"GPU memory|HIP|torch\.Out|strerror: |"  # oneCCL's, of a call of libfabric's
            r"\(Ib failure:",  # MSCCL++ words the status of a completion as if it were an errno
            line,
        )
        and not _NOBODY_KILLED.search(line)
        and not QUOTED_OUTPUT.search(line)
    ),
)
says(
    "exit-137",
    "xit code 137",
    "exit code: 137",
    "Exit Code:    137",
    "exitCode: 137",
    "exit status 137",
    cause="sys.host-oom",
    strength=0.46,
    title="a container or command ended with 137: SIGKILL, by the memory limit or by anyone else",
    why="137 is 128 and SIGKILL's 9. A kubelet that stops a pod, a launcher that cleans up and a person send it, too; \"OOMKilled\" in the pod's state, or the kernel's log, would tell.",
)
says(
    "large-allocation",
    "tcmalloc: large alloc {bytes:int} bytes",
    why="The allocator tells of an allocation of a gigabyte or more.",
)
_LAUNCHER_KILLED = re.compile(
    r"line \d+: +\d+ Killed +(?:nohup |sudo )?(?:\S*/)?"
    r"(?:deepspeed|torchrun|accelerate launch|mpirun|mpiexec|horovodrun|srun|python\S* (?:-u )?-m torch\.distributed\.(?:run|launch))\b"
)
says(
    "sigkill",
    "exitcode  : -9",
    "exitcode: -9",
    "exitcode=-9",
    "shutdown with signal 9 ",
    "signal: killed",
    "return code = -9",
    "signal 9 (Killed)",
    "Killed: 9",
    "terminated with code -9",
    "task {task}: Killed",
    "tasks {task}: Killed",
    "was terminated by signal 9",
    "killed by signal 9",
    "exited with signal 9",
    "(signal: 9)",
    "exit code -9",
    "SIGKILL",
    " Killed ",
    cause="sys.host-oom",
    strength=0.66,
    title="a process was killed with SIGKILL: usually the kernel's or the cgroup's memory limit",
    why="SIGKILL leaves no trace in the process. Usually the oom-killer (see the kernel log of that host); sometimes a scheduler or a person.",
    where=lambda groups, line: (
        # who sends it (torchrun at the end of its patience), and who will
        re.search(
            r"closing signal|potential root causes|via Signals\.|\b(?:will|(?<!due )to|then) (?:send )?SIGKILL|SIGKILL (?:after|in) \d|such as SIGKILL",
            line,
        )
        is None
        and _LAUNCHER_KILLED.search(line) is None
    ),
)
says(
    "launcher-killed",
    " Killed ",
    cause="launch.killed",
    strength=0.62,
    title="the launcher itself was killed (SIGKILL): by somebody, or with all of its group by a limit",
    why="The shell's account of its child. A launcher takes next to no memory: the oom-killer takes a rank first, and then the launcher says so.",
    pattern=_LAUNCHER_KILLED,
    wake=(" Killed ",),
)

says(
    "sends-sigkill",
    "ending SIGKILL",
    "ent SIGKILL",
    "kill -9 {pid:int}",
    "kill -KILL {pid:int}",
    why="Somebody or some script ends processes: which, the numbers tell.",
    # torchrun at the end of its patience; whoever watches over memory is known by the signature of that
    where=lambda groups, line: re.search(r"via Signals\.|earlyoom|oom|memory", line, re.IGNORECASE) is None,
)
says(
    "paging-file",
    "The paging file is too small for this operation to complete",
    "[WinError 1455]",
    cause="sys.host-oom",
    strength=0.92,
    title="Windows can commit no more memory: its paging file is too small for so many processes",
    why="Every process, a DataLoader's workers too, commits memory of its own for the libraries of CUDA that it loads: fewer workers, or a larger paging file.",
)
SHELL_KILLED = re.compile(  # in a paste, perhaps in bold type
    r"(?:^\s*|[\]:|>)-]\s*|: line \d+: +\d+ )(?:Killed(?:\s{2,}\S.*)?|[*_`]{1,3}Killed[*_`]{1,3})\s*$"
)
says(
    "shell-killed",
    "Killed",
    cause="sys.host-oom",
    strength=0.28,
    title="the shell says that the process was killed (SIGKILL): by the memory limit, or by somebody",
    why="A shell prints this word alone when SIGKILL ended its child. The kernel log tells whether it was the oom-killer.",
    pattern=SHELL_KILLED,
    wake=("Killed",),
)

# --- disks and file systems
says(
    "disk-full",
    "o space left on device",
    "isk quota exceeded",
    "ENOSPC",
    "file write failed",
    "Errno 122",
    "Errno 28",
    "OSError: Not enough disk space",
    "OutOfDiskError",
    "DiskPressure",
    "The node was low on resource: ephemeral-storage",
    "phemeral local storage usage exceeds",
    cause="sys.disk-full",
    strength=0.93,
    title="a disk or quota is full",
    why="Writing failed for want of space (or quota) on the path in the message.",
    where=lambda groups, line: (
        not re.search(
            r"/dev/shm|shm_open|posix_fallocate|shared memory|/torch_|/sys/fs/cgroup|libfabric|\bcxi|DiskPressure\W+False|NoDiskPressure",
            line,
        )
    ),
)
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
says(
    "disk-nearly-full",
    "% full, available space",
    why="Ray warns of a disk that is 95 % full. It spills only when its store is full, too: nothing has failed yet.",
)
says(
    "hung-task",
    "blocked for more than {seconds:int} seconds",
    "/proc/sys/kernel/hung_task_timeout_secs",
    "task:{name:word} {}state:D",
    why="A process waits in the kernel and cannot be interrupted; the stack below says for what (see the diagnosis of the same name).",
)
says(
    "driver-frame",
    "+0x{offset:hex}/0x{size:hex} [nvidia]",
    "+0x{offset:hex}/0x{size:hex} [nvidia_uvm]",
    "+0x{offset:hex}/0x{size:hex} [amdgpu]",
    why="A function of the GPU's driver in a kernel stack.",
)
# Names that also stand in lines of a sound mount
_FILE_SYSTEM = re.compile("mmfs|GPFS|WekaFS|libceph|ceph: mds")
_UNWELL = re.compile(
    r"error|fail|\blost|closed|\bdown\b|\bh[au]ng|unmount|expel|suspen|time(?:d )?-?out|\bstale|respon|\blease",
    re.IGNORECASE,
)
_WITHOUT_MEDIUM = re.compile(r"\bdev (?:fd|sr)\d")  # floppy and CD drives, as virtual machines have them
says(
    "fs-trouble",
    "tale file handle",
    "nfs: server {server} not responding",
    "not responding, still trying",
    "nput/output error",
    "ransport endpoint is not connected",
    "LustreError",
    "Lustre: {}was evicted",
    "soft lockup",
    "rcu_sched self-detected stall",
    "Expected to find locked file",
    "lock skew",
    "time drift",
    "tale NFS",
    "I/O error",
    "mmfs",
    "GPFS",
    "Errno 5]",
    "Errno 116",
    "Connection to {} (at {}) was lost; in progress operations using this service",
    "WekaFS",
    "Host is down",
    "Errno 107",
    "Errno 121",
    "ceph: mds",
    "libceph",
    "beegfs: disabled connection",
    "Disk lease period expired ",  # GPFS
    "unmounted by the system",
    "No locks available",
    "Errno 37]",
    "nable to lock file",
    "Read-only file system",
    ": read-only file system",  # Go
    "Errno 30]",
    "Text file busy",
    "Device or resource busy: '.nfs",
    "Resource deadlock avoided",
    "flock: failed",
    "Rewound credential",
    "Expired credential",
    "Invalid authentication credential",
    "clock is skewed",
    "unable to acquire lock",
    "filelock{}Timeout",
    "Lock {} could not be acquired",
    "Timeout: The file lock",
    "Errno 74]",
    "nfs4_reclaim",
    "NFS: state manager",
    "in uninterruptible sleep",
    "rpc_wait_bit_killable",
    "wait_on_page",
    "nfs_wait",
    cause="sys.clock-or-dns-or-fs",
    strength=0.8,
    title="a shared file system or the host hangs or fails",
    why="The kernel or the program reports input/output trouble, a stale handle, a lock that is refused, a file system that turned read-only, or clocks that differ.",
    where=lambda groups, line: (
        not re.search(
            r"PCIe|libfabric|\bprov_errno\b|status -3 \(|register (?:memory|MR|mr)\b|check lease failed|"
            r"(?i:ucx|(?<![a-z])ucp|\bucc\b|\bofi|_ofi|\befa\b|\bcxi|nixl|psm[23])|what\(\): [^/]*endpoint[^/]*$",
            line,
        )  # of a network's library EIO is an adapter's (status -3: UCX's), of an endpoint without a path ENOTCONN a socket's
        and (_FILE_SYSTEM.search(line) is None or _UNWELL.search(line) is not None)
        and _WITHOUT_MEDIUM.search(line) is None
    ),
)
says(
    "part-of-another-rank",
    "No such file or directory: '{directory}/part_{rank:int}.pkl'",
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.not-shared",
    strength=0.88,
    title="rank 0 does not find what rank {rank} wrote: the directory is not shared by the hosts",
    why="OpenMMLab's collect_results_cpu gathers through files: work_dir (or tmpdir) has to be one directory of all hosts; gpu_collect=True does without.",
)
says(
    "index-of-another-rank",
    "No such file or directory: '{path}_doc_idx.npy'",
    "No such file or directory: '{path}_sample_idx.npy'",
    "No such file or directory: '{path}_shuffle_idx.npy'",
    "No such file or directory: '{path}-document_index.npy'",
    "No such file or directory: '{path}-sample_index.npy'",
    "No such file or directory: '{path}-shuffle_index.npy'",
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.not-shared",
    strength=0.88,
    title="a rank does not find the data's index that rank 0 wrote: its directory is not shared by the hosts, or is behind",
    why="Megatron's rank 0 builds the index of a data set for all (index-cache, --data-cache-path): that is one directory of all hosts, or each host builds its own.",
)
says(
    "build-lock",
    "Lock file exists in build directory: '{path}'",
    role=Role.SYMPTOM,
    cause="sys.clock-or-dns-or-fs",
    strength=0.46,
    fold="a lock file is waited for",
    title="a build of CUDA code waits for the lock of another one, {path}: where no build runs, delete it",
    why="nvdiffrast says what torch.utils.cpp_extension waits for in silence and without end: who was killed while it built leaves its lock.",
)
says(
    "lustre-unanswered",
    "ptlrpc_expire_one_request()) @@@ Request sent has {state}",
    "LNetError: {}Timed out tx: ",
    "LNetError: {}Error {code:int} -> ",
    cause="sys.clock-or-dns-or-fs",
    strength=0.55,
    title="a server of the Lustre file system does not answer in time (kernel log)",
    why="Requests to a server expired: its load, or the network between. Lustre sends them again; who reads or writes a file meanwhile stands still.",
)
says(
    "disk-fails",
    # Linux: drivers/nvme/host/pci.c and core.c, block/blk-core.c, and the file systems' own words; read 2026-11
    "nvme nvme{}: controller is down",
    "nvme nvme{}timeout, aborting",
    "nvme nvme{}timeout, reset controller",
    "nvme nvme{}timeout, disable controller",
    "nvme nvme{}Device not ready; aborting",
    "nvme nvme{}: Removing after probe failure",
    "nvme nvme{}: Disabling device after reset failure",
    "medium error, dev ",
    "critical target error, dev ",
    "rejecting I/O to offline device",
    "I/O error, dev {disk:word}, sector",
    "uffer I/O error on dev",
    "Disk failure on {disk:word}",  # md
    "EXT4-fs error",
    "EXT4-fs ({disk:word}): Remounting filesystem read-only",
    "Aborting journal on device",
    "XFS {}: {}error",
    "XFS ({disk:word}): {}Shutting down filesystem",
    "Structure needs cleaning",
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.disk",
    strength=0.82,
    title="a disk of the host, or the file system on it, fails",
    why="The kernel lost a disk, or found its file system damaged: what lies on it cannot be read or written, and who tries waits or gets an error.",
    where=lambda groups, line: _WITHOUT_MEDIUM.search(line) is None,
)
says(
    "storage-cluster-unwell",
    # Ceph's health checks, in its log and of `ceph health detail` (docs.ceph.com, health checks; read 2026-11)
    " slow ops, oldest one blocked for",
    "slow metadata IOs",
    "failing to respond to capability release",
    "filesystem is degraded",
    "filesystem is offline",
    "Reduced data availability: ",
    # Gluster's client
    "All subvolumes are down. Going offline",
    "has not responded in the last {seconds:int} seconds, disconnecting",
    "Client-quorum is not met",
    cause="sys.clock-or-dns-or-fs",
    strength=0.72,
    title="the storage cluster (Ceph, Gluster) is not well: reads and writes wait for it",
    why="Its own log says that requests wait, or that servers are gone whose data no other has. Files there are the ones that programs wait for; without it their own lines tell.",
    where=lambda groups, line: not re.search(r"cleared:| 0 slow ops", line),
)
says(
    "clock-refused",
    "RequestTimeTooSkewed",
    "The difference between the request time and the",
    "Signature not yet current",
    "Token used too early",
    "certificate has expired or is not yet valid: current time {now} is before",
    "certificate is not yet valid",
    cause="sys.clock-or-dns-or-fs",
    page="host.clock-offset",
    strength=0.88,
    title="a server refuses what this host sends, as its clock is wrong",
    why="Object stores sign requests with the time, and certificates and tokens begin at one: compare `date -u` with another host's. Of S3 also said "
    "where a single part of an upload took longer than 15 minutes.",
)

# --- containers
says(
    "container-limits",
    "set_mempolicy: Operation not permitted",
    "mbind: Operation not permitted",
    "seccomp",
    "Permission denied{}/dev/",
    "/dev/{}Permission denied",
    "Operation not permitted{}numa",
    "get_mempolicy: Operation not permitted",
    "CAP_SYS_",
    "CAP_IPC_LOCK",
    "/sys/class/{}: No such file",
    "cgroup{}device not allowed",
    "UDS: Binding to socket",
    "UDS: Sending data over socket",
    "UDS: Receiving data over socket",
    "move_pages{}not permitted",
    "Unable to open /sys",
    "pidfd_getfd",
    "pidfd_open",
    "ptrace: Operation not permitted",
    'operation="ptrace"',
    cause="sys.container",
    strength=0.78,
    title="the container's restrictions get in the way",
    why="A system call or a device is refused inside the container (seccomp, capabilities, missing mounts, separate namespaces).",
    pattern=re.compile(r"WARN|rror|ail|denied|not permitted|No such|not allowed"),
)
says(
    "no-cdi-devices",
    "unresolvable CDI devices {devices}",
    "failed to inject CDI devices",
    "failed to stat CDI host device {devices}",
    cause="sys.container",
    strength=0.8,
    title="no CDI specification of this host describes the GPUs that the container asks for: {devices}",
    why="Podman, containerd and the toolkit's CDI mode read /etc/cdi and /var/run/cdi: none was generated (nvidia-ctk cdi generate), it is of an "
    "older driver or of a version that the engine cannot read, or the device in it is gone.",
)
says(
    "no-gpu-files-for-the-container",
    "Could not find any nv files on this host",
    "Could not find any nv libraries on this host",
    "Could not find any rocm files on this host",
    cause="gpu.not-visible",
    strength=0.62,
    title="Apptainer (Singularity) finds no GPU driver's files on this host to bind into the container",
    why="--nv and --rocm bind the driver's libraries of the host: a login node has none, and where ldconfig does not list them they are not found.",
)
says(
    "devices-taken-away",
    "Failed to initialize NVML: Unknown Error",
    "Failed to initialize NVML: ERROR_UNKNOWN",  # through a library in between (HAMi)
    cause="sys.container",
    page="gpu.driver.failed",
    strength=0.93,
    title="the container has lost its access to the GPUs",
    why="NVML's unknown error inside a container: its device cgroup was rewritten (a systemctl daemon-reload on the host does that), the devices are still there outside.",
)
says(
    "cuda-unknown-error",
    "Cuda failure 999 'unknown error'",
    "CUDA error: unknown error",
    "Cuda failure 'unknown error'",
    "Test CUDA failure {place} 'unknown error'",
    why="CUDA's error 999: the driver could not say more.",
)

# --- nodes
_BEFORE = re.compile(r"\b(?:last|previous|earlier|prior)\b[\w ]{0,20}\b(?:attempt|run)\b")  # what became of another job
_TOLERATED = re.compile(r"Tolerations:|op=Exists|:NoExecute for \d")  # what a pod would bear, not what happened
says(
    "node-failure",
    "DUE TO NODE FAILURE",
    "preempted (node failure)",  # Torque, Moab
    "Node failure on {node:word}",
    "NODE_FAIL",
    "NodeNotReady {}node/{node:word}",  # kubectl get events
    "Node {node:word} status is now: NodeNotReady",
    "NodeNotReady",
    "Kubelet stopped posting node status",
    "and node name: {node:word} has been marked dead because",  # Ray
    " has missed too many heartbeats from it",
    "This node has be{}n marked as dead",  # the raylet itself, in both its spellings
    "because its node has died",
    "the node it was running on is dead or unavailable",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/not-ready",
    "the node is down",
    "not responding, setting to DOWN",
    "NOT_RESPONDING",
    "setting DOWN",
    "Kernel panic",
    "mce: [Hardware Error]",
    "Machine Check Exception",
    "EC2 instance{}terminated",
    "spot instance interruption",
    "node(s) were lost",
    "Node lost",
    "NodeLost",
    "HostDown",
    "host {host:word} is unreachable",
    "node{}has been terminated",
    "unexpected reboot",
    "Hardware Error]: {}fatal",
    "NodeShutdown",
    "Instance Termination",
    cause="sys.node-failure",
    strength=0.95,
    title="a host died or was declared dead",
    why="The scheduler or the kernel says that a host went away.",
    where=lambda groups, line: (
        not ("Machine check events logged" in line or _TOLERATED.search(line) or _BEFORE.search(line))
    ),
)
says(
    "node-died",
    "error: Nodes {nodes:word} not responding",
    "lost contact with job shell on broker {node:word}",  # Flux
    "({node:word}) requested job terminate, 'EOF'",  # PBS: the connection to that node's daemon ended
    "received SISTER_EOF attempting to communicate",
    "type=node-failure",  # Flux
    "unexpectedly rebooted",
    "Node {node:word} rebooted {seconds:int} secs ago",
    "BOOT_FAIL",
    "Reason=NodeDown",
    "PLEG is not healthy",
    "detected hard LOCKUP",
    "kernel BUG at",
    "unable to handle kernel",
    "BUG: kernel NULL pointer dereference",
    "unable to handle page fault",
    "general protection fault, probably for non-canonical",
    "UE memory {kind:word} error on",
    "due to hardware memory corruption",
    "Memory failure: 0x{page:hex}: ",
    "detected stalls on CPUs/tasks",
    "| IERR",
    "CATERR",
    "Uncorrectable ECC {}DIMM",
    "Memory #0x{}Uncorrectable ECC",
    " - crash {}(",
    "compute.instances.hostError",
    cause="sys.node-failure",
    strength=0.84,
    title="a host died, rebooted, or its hardware or kernel failed",
    why="The scheduler lost the node, or its kernel reports a fault that no program survives: uncorrectable memory, a lock-up, a crash.",
    where=lambda groups, line: ": Recovered" not in line,
)

says(
    "raylet-ended",
    "Raylet failed. Shutting down",
    "Raylet is terminated",
    "raylet process died",
    cause="sys.node-failure",
    strength=0.55,
    title="Ray's daemon (raylet) on a node ended: crashed, killed for memory, or Ray was stopped there",
    why="Workers end with their raylet. raylet.out and the kernel log of that node say why.",
)
says(
    "container-reason",
    "nvidia-container-cli: {error}\\",  # quoted by runc, once or several times
    "nvidia-container-cli: {error}",
    "enroot-nsenter: {error}",
    "enroot-mount: {error}",
    "enroot-switchroot: {error}",
    "enroot-mksquashovlfs: {error}",
    "enroot-aufs2ovlfs: {error}",
    "enroot-makedev: {error}",
    cause="sys.container",
    page="sys.container.not-started",
    strength=0.67,
    title="the container could not be started: {error}",
    why="The program of the container runtime that failed, by its own words: nvidia-container-cli asks the node's driver for the GPUs and mounts them, enroot's helpers make name spaces and mounts.",
    where=lambda groups, line: " error: " in groups["error"] or ("enroot-" in line and "command not found" not in line),
)
says(
    "container-runtime",
    "OCI runtime create failed",
    "nvidia-container-cli: {error}",
    " nvc.c:{line:int}] failed to change root directory",
    "could not select device driver",
    "unshare: Operation not permitted",
    "mount: permission denied",
    "CreateContainerError",
    "CreateContainerConfigError",
    "failed to create shim task",
    "OCI runtime error",
    "unknown or invalid runtime name: ",
    "Cannot connect to the Docker daemon",
    "trying to connect to the Docker daemon socket",
    "bind source path does not exist",
    "error gathering device information while adding custom device",
    "pyxis: ",
    "enroot: ",
    "enroot-",
    "apptainer: ",
    "FATAL:   container",
    "FATAL:   While ",  # Apptainer, Singularity
    "FATAL: kernel too old",
    "ERROR  : Failed creating directory {path}/.singularity.d",  # Singularity 2
    cause="sys.container",
    page="sys.container.not-started",
    strength=0.66,
    title="the container could not be started: {error}",
    why="The container runtime failed before the program began.",
    where=lambda groups, line: bool(
        # pyxis tells its progress by slurmstepd's function for errors
        re.search(
            r"rror|ail|FATAL|denied|BackOff|not ",
            re.sub(r"^.*error: (?=pyxis: (?:import|creat|start|warning))", "", line),
        )
    ),
)
says(
    "enroot-lacks-program",
    "[ERROR] Command not found: {program:word}",
    cause="sys.container",
    page="sys.container.not-started",
    strength=0.66,
    title="enroot needs the program {program}, which is not installed on the host",
    why="squashfuse and fuse-overlayfs mount an image without root, unsquashfs unpacks it, and mksquashfs packs it.",
    pattern=re.compile("pyxis|enroot|squash|fuse-overlayfs"),
)
says(
    "container-name-taken",
    'Conflict. The container name "{name}" is already in use by container',
    cause="unrelated",
    strength=0.8,
    title="a container with the name {name} is already there",
    why="Docker starts no second one of the name, also where the first has ended: docker rm, or another --name.",
)
says(
    "adapter-not-in-container",
    'adding custom device "/dev/infiniband/{device:word}": no such file or directory',
    cause="ib.device-not-found",
    strength=0.85,
    title="the host has no /dev/infiniband/{device}",
    why="The container is given an RDMA device that the host's kernel did not make: no adapter, no driver, or ib_uverbs is not loaded.",
)
