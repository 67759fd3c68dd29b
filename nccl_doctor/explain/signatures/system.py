"""The host around the job: memory, limits, disks, containers, file systems, nodes."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says("shm-no-space", "/dev/shm{}No space left on device", "posix_fallocate failed : No space left on device", "Error while creating shared memory segment {segment}", "Error while attaching to shared memory segment {segment}", "failed to extend /dev/shm", "failed to create shared memory file", "fallocate: Failed to extend {file} to", "Error while {} shared memory segment", "insufficient shared memory (shm)", "out of shared memory (shm)", "unable to allocate shared memory(shm)", "unable to write to file </torch_", "Bus error. It is possible that dataloader's workers are out of shared memory", "shm_open {}No space left", "Unable to allocate shared memory", "unable to mmap {} bytes from file </torch", "Call to ftruncate failed : No space left", "Call to shm_open failed", "No space left on device{}/dev/shm",
     cause="sys.shm", strength=0.95, title="/dev/shm is too small (or full)", why="A shared-memory segment cannot be created or extended: containers have 64 MB of /dev/shm by default.")
says("bus-error", "Signal 7 (SIGBUS) received by PID", "exitcode  : -7", "exit code: 135", "exit code 135", "Bus error (core dumped)", "Bus error", "signal: Bus error", "SIGBUS", cause="sys.shm", strength=0.86, title="a process died of a bus error: /dev/shm ran full under it", why="A page of a shared-memory mapping could not be backed: /dev/shm is full. (Rarely: a truncated memory-mapped file.)")
says("too-many-files", "Too many open files", "EMFILE", "received 0 items of ancdata", "Errno 24", cause="sys.nofile", strength=0.95, title="too many open files", why="The process reached its limit of open files (ulimit -n).")
says("threads", "pthread_create failed", "can't start new thread", "Thread creation failed", "fork: retry: Resource temporarily unavailable", "fork: Resource temporarily unavailable", "Cannot fork", "pthread_create{}Resource temporarily unavailable", "failed to create new OS thread", "libgomp: Thread creation failed", "BlockingIOError: [Errno 11] Resource temporarily unavailable", "unable to start new thread", "cgroup: fork rejected by pids controller", "Call to pthread_create failed", "std::system_error{}Resource temporarily unavailable", "RLIMIT_NPROC", "Resource temporarily unavailable",
     cause="sys.threads", strength=0.93, title="no more threads or processes can be created (EAGAIN)", why="pthread_create or fork returned EAGAIN: the user's process limit, the cgroup's pids limit, or the container's.",
     where=lambda groups, line: bool(re.search(r"thread|fork|NPROC|pids|clone|process", line, re.IGNORECASE)))

# --- host memory
says("oom-killer", "Out of memory: Kill", "oom-kill:constraint", "Memory cgroup out of memory", "invoked oom-killer", "OOMKilled", "oom_kill event", "oom-kill event", "oom_kill events", "Some of your processes may have been killed by the cgroup out-of-memory handler", "OUT_OF_MEMORY", "node running low on memory", "running low on memory", "Killed process {pid:int} ({name})", "exceeded memory limit, being killed", "Exceeded job memory limit", "exceeded step memory limit", "memory.max", "MemoryError", "not enough memory: you tried to allocate", "Cannot allocate memory", "std::bad_alloc", "SystemOOM", "The node was low on resource: memory", "TaskOOM", "OutOfMemoryError: Task was killed", "Memory usage on the node",
     cause="sys.host-oom", strength=0.95, title="the host (or its memory cgroup) ran out of memory", why="The kernel, the cgroup or Kubernetes killed a process for want of host memory; or an allocation of host memory failed.",
     where=lambda groups, line: not re.search(r"ibv_|fi_mr_reg|register|CUDA|cuda|QP|cudaHost|reg_mr|CQ", line))
says("sigkill", "Signal 9 (SIGKILL) received by PID", "exitcode  : -9", "exitcode: -9", "(exitcode: -9)", "exit code 137", "exit code: 137", "Exit Code:    137", "Exit code 137", "return code = -9", "exits with return code = -9", "terminated with signal SIGKILL", "signal 9 (Killed)", "Killed: 9", "died with <Signals.SIGKILL: 9>", "SIGKILL", " Killed ",
     cause="sys.host-oom", strength=0.66, title="a process was killed with SIGKILL: usually the kernel's or the cgroup's memory limit", why="SIGKILL leaves no trace in the process. Usually the oom-killer (see the kernel log of that host); sometimes a scheduler or a person.",
     where=lambda groups, line: "closing signal" not in line)

# --- disks and file systems
says("disk-full", "No space left on device", "Disk quota exceeded", "ENOSPC", "PytorchStreamWriter failed writing file", "file write failed", "disk quota exceeded", "Errno 122", "Errno 28", "OSError: Not enough disk space", "DiskPressure", "ephemeral-storage", "The node was low on resource: ephemeral-storage",
     cause="sys.disk-full", strength=0.93, title="a disk or quota is full", why="Writing failed for want of space (or quota) on the path in the message.",
     where=lambda groups, line: not re.search(r"/dev/shm|shm_open|posix_fallocate|shared memory|/torch_", line))
says("fs-trouble", "Stale file handle", "nfs: server {server} not responding", "not responding, still trying", "Remote I/O error", "Input/output error", "Transport endpoint is not connected", "LustreError", "Lustre: {}was evicted", "blocked for more than {seconds:int} seconds", "soft lockup", "rcu_sched self-detected stall", "Expected to find locked file", "clock skew", "Clock skew", "time drift", "stale NFS", "Stale NFS", "I/O error", "mmfs", "GPFS", "EXT4-fs error", "XFS {}: {}error", "Errno 5]", "Errno 116", "lease expired", "Connection to {} (at {}) was lost; in progress operations using this service", "watchdog: BUG: soft lockup", "certificate is not yet valid", "WekaFS", "Host is down", "Errno 107", "Errno 121", "ceph: mds{}hung", "libceph",
     cause="sys.clock-or-dns-or-fs", strength=0.8, title="a shared file system or the host hangs or fails", why="The kernel or the program reports input/output trouble, a stale handle or a hung task.",
     where=lambda groups, line: "PCIe" not in line)

# --- containers
says("container-limits", "set_mempolicy: Operation not permitted", "mbind: Operation not permitted", "seccomp", "Could not find real path of /sys", "Permission denied{}/dev/", "/dev/{}Permission denied", "Operation not permitted{}numa", "get_mempolicy: Operation not permitted", "CAP_SYS_", "CAP_IPC_LOCK", "/sys/class/{}: No such file", "cgroup{}device not allowed", "UDS: Binding to socket", "UDS: Sending data over socket", "UDS: Receiving data over socket", "move_pages{}not permitted", "Could not find real path of", "Failed to initialize NVML: Unknown Error", "Unable to open /sys", "pidfd_getfd", "pidfd_open", "ptrace",
     cause="sys.container", strength=0.78, title="the container's restrictions get in the way", why="A system call or a device is refused inside the container (seccomp, capabilities, missing mounts, separate namespaces).",
     where=lambda groups, line: bool(re.search(r"WARN|rror|ail|denied|not permitted|No such|not allowed|Unknown Error", line)))
says("cuda-unknown-error", "Cuda failure 999 'unknown error'", "CUDA error: unknown error", "Cuda failure 'unknown error'", why="CUDA's error 999: the driver could not say more.")

# --- nodes
says("node-failure", "DUE TO NODE FAILURE", "Node failure on {node:word}", "NODE_FAIL", "NodeNotReady", "Node {} status is now: NodeNotReady", "Kubelet stopped posting node status", "has been marked dead because the detector has missed too many heartbeats", "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready", "the node is down", "lost communication with a remote daemon", "has lost communication with", "not responding, setting DOWN", "not responding, setting to DOWN", "setting DOWN", "Kernel panic", "Machine check events logged", "mce: [Hardware Error]", "Machine Check Exception", "EC2 instance{}terminated", "spot instance interruption", "node(s) were lost", "Node lost", "NodeLost", "HostDown", "host {} is unreachable", "raylet{}died", "Raylet died", "node{}has been terminated", "unexpected reboot", "Hardware Error]: {}fatal", "NodeShutdown", "Instance Termination", "Socket timed out on send/recv operation",
     cause="sys.node-failure", strength=0.95, title="a host died or was declared dead", why="The scheduler or the kernel says that a host went away.")
says("segfault-kernel", "segfault at {}in {library}[", why="A process crashed in a library (kernel log).")
