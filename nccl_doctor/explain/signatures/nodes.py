"""What schedulers, Kubernetes and the kernel say of a node: it died, it was refused, its volumes, pods and clocks fail."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

_NOT_THERE = re.compile(
    r"not found|manifest unknown|pull access denied|does not exist|unauthori[sz]ed|no basic auth|40[134] (?:Not|Forb|Unau)",
    re.IGNORECASE,
)


def _no_image(line: str) -> bool:
    """Whether a registry answered that it has no such image, or not for this job."""
    return _NOT_THERE.search(line) is not None and re.search(r"image|manifest|pull|reference", line) is not None


# Nothing answered, or its credentials did not fit; the job was over; too little of what was asked for; an interactive job of qsub.
_NOT_REFUSED = (
    r"contact|[Tt]imed out|Zero Bytes|[Aa]uthentication|already completing|"
    r"node configuration is not|More processors|waiting for job|^job \S+ (?:ready|completed)"
)

says(
    "node-died",
    "error: Nodes {nodes:word} not responding",
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
    "step-not-launched",
    "timeout waiting for task launch, started",
    "aborted before step completely launched",
    "Task launch for {step} failed on node {node}: {error}",
    "Application launch failed: {error}",
    "Prolog for job {job:int} failed",
    "Prolog launch failure",
    "Prolog hung on node",
    ": Prolog error",
    "Prolog failure on node {node:word}",
    "srun: error: Nodes {node:word} are still not ready",
    "launch failed requeued held",
    "launch_failed_requeued_held",
    "Required node not available (down, drained or reserved)",
    cause="sys.node-failure",
    strength=0.66,
    title="Slurm could not start the job on one of its nodes",
    why="A node did not answer, or its prolog failed. slurmd's log on that node says why.",
    where=lambda groups, line: not re.search("credential|layout tasks|cpu bind", line),
)
says(
    "step-unkillable",
    "DUE TO JOB NOT ENDING WITH SIGNALS",
    "DUE TO STEP NOT ENDING WITH SIGNALS",
    "Kill task failed",  # the reason for which slurmctld drains the node
    cause="sys.node-failure",
    strength=0.6,
    title="Slurm could not end the job on one of its nodes",
    why="Processes there cannot be killed: they wait in the kernel for a file system or a driver, whose fault is the cause.",
)
says(
    "credential-refused",
    "nvalid job credential",
    "Job credential expired",
    "Munge decode failed",
    "Credential replayed",
    "System clock wrong by",
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.credentials",
    strength=0.86,
    title="the hosts' clocks (or munge keys) differ: Slurm's credentials are refused",
    why="A credential is valid for minutes: clocks that differ, or another munge key, make every launch fail.",
)
says(
    "job-ended-from-outside",
    "JobState=TIMEOUT",
    "JobState=DEADLINE",
    "JobState=PREEMPTED",
    " TIMEOUT ",
    " CANCELLED by {user:int}",
    "ime limit exhausted",
    "spot interruption",
    "for node scale down",
    "imminent node shutdown",
    "graceful node shutdown",
    '"state":"shutting-down"',
    "terminated during maintenance",
    "compute.instances.preempted",
    "Preempted to accommodate",
    "liveness probe, will be restarted",
    cause="launch.killed",
    strength=0.84,
    title="the job was stopped from outside",
    why="The scheduler or the cloud ended it: time limit, cancellation, preemption, scale-down, a probe that failed.",
    where=lambda groups, line: " TIMEOUT " not in line or re.search(r" TIMEOUT\s+\d+:\d+", line) is not None,
)
says(
    "volume-not-mounted",
    "MountVolume.SetUp failed",
    "Unable to attach or mount volumes",
    "mount.nfs: ",
    "mount.lustre: ",
    "Multi-Attach error for volume",
    "AttachVolume.Attach failed",
    cause="sys.clock-or-dns-or-fs",
    strength=0.74,
    title="a volume or file system could not be mounted",
    why="Without its volume the pod or job cannot start; its peers wait for it.",
    where=lambda groups, line: not line.endswith(" not registered"),  # the kubelet of a pod that has already ended
)
says(
    "image-not-there",
    "Failed to pull image",
    "failed to resolve reference",
    "rror response from daemon: ",
    "unable to pull image",
    "manifest unknown",
    "pull access denied",
    "returned error code: 404",  # enroot
    why="A registry answers that it does not have an image, or does not give it to this job.",
    where=lambda groups, line: _no_image(line),
)
says(
    "sandbox-failed",
    "ailed to create pod sandbox",
    "ailed create pod sandbox",
    "NetworkPlugin cni failed to ",
    "network plugin is not ready: ",
    "failed to setup network for sandbox",
    cause="sys.container",
    page="sys.container.not-started",
    strength=0.72,
    title="Kubernetes could not make the pod's sandbox or its network",
    why="The runtime failed before the program began: its CNI plugin, or what the pod's networks and devices name.",
    where=lambda groups, line: not _no_image(line),
)
says(
    "slurm-io-refused",
    "launch failed: Slurmd could not connect IO",
    cause="net.firewall",
    strength=0.7,
    title="a node cannot connect back to srun",
    why="slurmd opens connections to ports of the host where srun runs (SrunPortRange): a firewall between them, or a name that leads elsewhere.",
)
says(
    "operator-validation",
    "error validating driver installation",
    "error validating toolkit installation",
    cause="gpu.driver",
    strength=0.7,
    title="the GPU operator's validator finds no working driver (or container toolkit) on a node",
    why="Until it does, the node hands out no GPUs. The driver's pod, or the driver of the host, says why.",
)
says(
    "private-tmp-gone",
    "container_p_join: open failed for {path}",
    "container_p_join: setns failed for {path}",
    "container_g_join failed: ",
    cause="sys.container",
    strength=0.78,
    title="a node has lost the job's private namespace (job_container/tmpfs)",
    why="Slurm could not join the mount name space that the job got on this node: slurmd was restarted, or the prolog failed there.",
)
says(
    "image-not-pulled",
    "Failed to pull image",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CannotPullContainerError",  # Amazon ECS and Batch
    "pull access denied for",
    "manifest unknown",
    "trying and failing to pull image",
    "Error response from daemon: manifest for",
    "/manifests/{tag} returned error code: 4",  # enroot
    why="A container's image cannot be pulled: its name, its tag, the access to its registry, or the network to it.",
)
says(
    "gpus-not-handed-out",
    "requested number of devices unavailable for nvidia.com/{resource:word}",
    "requested number of GPUs unavailable. ",
    "device marked unhealthy",
    cause="gpu.not-visible",
    strength=0.74,
    title="the node has fewer healthy GPUs than it should: its device plugin hands out no more",
    why="The device plugin withdrew a GPU, mostly after an Xid: the node's kernel log names it.",
)
says(
    "sinfo-node-down",
    "down*{}Not responding",
    cause="sys.node-failure",
    strength=0.64,
    title="sinfo lists nodes that do not respond",
    why="slurmctld no longer hears from slurmd there. Whether they are nodes of this job, and since when, the list does not say.",
)
says(
    "slurm-counts-fewer-gpus",
    "etting node {node:word} state to {state:word} with reason:gres/gpu count reported lower than configured ({there:int} < {wanted:int})",
    "gpu count reported lower than configured",
    cause="gpu.not-visible",
    strength=0.9,
    title="a node reports fewer GPUs to Slurm than slurm.conf names: Slurm takes it out of service",
    why="slurmd finds fewer devices than Gres= says: a GPU is gone, its driver is not loaded, MIG was changed, or gres.conf is wrong.",
)
says(
    "device-plugin-failed",
    "Allocate failed due to rpc error",
    "Allocate failed due to device plugin",
    "Failed to prepare dynamic resources: ",
    "endpoint not found in cache for a registered resource",
    cause="gpu.not-visible",
    strength=0.62,
    title="the node's device plugin (or DRA driver) does not hand out its devices: it failed, or restarts",
    why="The kubelet asks it for the pod's GPUs, and that did not answer. Its own pod on the node says why.",
)
says(
    "master-awaited",
    "restarting failed container init-pytorch",  # Kubeflow's training operator
    cause="net.master-unreachable",
    strength=0.66,
    title="a worker's init container waits for the master's service in vain",
    why="Kubeflow's workers look up the master's name before they start: its pod or service is missing, or DNS does not know it.",
)
says(
    "pod-not-running",
    'unable to upgrade connection: container not found ("{container}")',
    "unable to upgrade connection: pod does not exist",
    "cannot exec into a container in a completed pod",
    'Error from server (NotFound): pods "{pod}" not found',
    'container "{container}" in pod "{pod}" is waiting to start: {reason}',
    "does not have a host assigned",
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.48,
    fold="kubectl finds no running container",
    title="a pod of the job does not run (yet, or any more): kubectl reaches no container in it",
    why="Launchers that start their workers by kubectl exec (MPI operators) need all of them to run: the pod's events say what it waits for.",
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
says(
    "api-server-refuses",
    "Error from server (Forbidden): {message}",
    "Error from server (Invalid): {message}",
    "Error from server (InternalError): {message}",
    cause="unrelated",
    strength=0.6,
    title="Kubernetes answers a request with an error: {message}",
    why="The API server answered kubectl with an error: rights, a field of the object, or a webhook. Nothing of the job has begun.",
)
says(
    "no-such-kind",
    "the server could not find the requested resource",
    "no matches for kind {kind}",
    cause="unrelated",
    strength=0.62,
    title="Kubernetes does not know a kind of object that the job's operator asks for: its CRD is not installed, or of another version",
    why="The API server refuses the object: what should create pods or pod groups cannot.",
    where=lambda groups, line: (
        not re.search(r"[Ff]ailed to (?:watch|list)|\(NotFound\)", line)
    ),  # a controller's look-out
)
says(
    "slurm-device-file",
    "can't stat gres.conf file {device:word}: No such file or directory",
    cause="gpu.not-visible",
    strength=0.94,
    title="slurmd does not start: {device} of its gres.conf is not there",
    why="gres.conf names a device file that the driver did not create: its module is not loaded (or not yet, at boot), or the GPU is gone.",
)
says(
    "slurm-job-signal",
    "JobId={job:int} WTERMSIG {signal:int}",
    cause="launch.killed",
    strength=0.7,
    title="Slurm job {job} ended by signal {signal}",
    why="slurmctld's log: the batch script was ended by a signal; 9 is also what the kernel sends when memory runs out.",
)
says(
    "slurm-daemon-fatal",
    "slurmctld[{pid:int}]: fatal: {message}",
    "slurmd[{pid:int}]: fatal: {message}",
    "slurmctld: fatal: {message}",
    "slurmd: fatal: {message}",
    "T{hour:int}:{minute:int}:{second:int}.{fraction:int}] fatal: {message}",  # their log files
    cause="unrelated",
    strength=0.8,
    title="Slurm's daemon does not start: {message}",
    why="slurmctld and slurmd end at an error of their configuration or state that they call fatal.",
)
says(
    "slurm-plugin",
    "error: cannot create {kind:word} context for {plugin}",
    "error: Couldn't find the specified plugin name for {plugin} looking at all files",
    "error: Couldn't load specified plugin name for {plugin}: {error}",
    cause="unrelated",
    strength=0.8,
    title="Slurm cannot load its plugin {plugin}",
    why="Slurm's daemons and commands load what slurm.conf and cgroup.conf name. It was not built or installed here, or does not start (cgroup/v2 needs systemd and dbus).",
    where=lambda groups, line: not groups["plugin"].startswith("mpi/"),
)
says(
    "submission-refused",
    "Batch job submission failed: {reason}",
    "Unable to allocate resources: {reason}",
    "Job submit/allocate failed: {reason}",
    "qsub: {reason}",
    "Unable to run job: {reason}",  # Grid Engine
    ". Job not submitted",  # LSF
    cause="unrelated",
    strength=0.85,
    title="the scheduler refuses the job: {reason}",
    why="An account, partition, limit or resource of the request is not valid here: nothing has begun.",
    where=lambda groups, line: (
        not re.search(_NOT_REFUSED, groups.get("reason", ""))
        and ("qsub: " not in line or line.lstrip().startswith("qsub: "))
    ),
)
says(
    "slurm-script-gone",
    "execve(): {path}/slurm_script: No such file or directory",
    cause="unrelated",
    strength=0.9,
    title="the job's script is gone from the node's {path}",
    why="slurmd writes the script below SlurmdSpoolDir before it starts it: something cleans that directory (/tmp is none for it), or slurmd could not write.",
)
says(
    "slurm-output-refused",
    "Could not open stdout file {path}: {error}",
    "Could not open stderr file {path}: {error}",
    cause="unrelated",
    strength=0.7,
    title="Slurm cannot open the job's output file {path} on the node: {error}",
    why="Slurm does not create directories for --output, and the node needs the file system on which it lies.",
)
says(
    "slurm-directory-gone",
    "couldn't chdir to `{path}': {error}: going to /tmp instead",
    cause="sys.clock-or-dns-or-fs",
    strength=0.5,
    title="the job's directory {path} is not on the node: {error}",
    why="The job goes on in /tmp, where its files are not: the shared file system is not mounted there, or the directory lies on another host alone.",
)
says(
    "slurm-gpus-without-files",
    "unable to set env vars, no device files configured",
    cause="gpu.not-visible",
    strength=0.7,
    title="Slurm gives the job GPUs without their devices: its gres.conf on this node names no File=",
    why="Without device files (or AutoDetect=nvml) Slurm sets no CUDA_VISIBLE_DEVICES.",
)
says(
    "slurm-low-memory",
    "has low real_memory size",
    "Low RealMemory",
    cause="sys.node-failure",
    strength=0.7,
    title="a node has less memory than slurm.conf says: Slurm takes it out of service",
    why="A memory module failed or was taken out, or RealMemory= is more than the kernel leaves.",
)
says(
    "slurm-node-described-otherwise",
    "Node configuration differs from hardware: {difference}",
    "gres/{kind:word}: invalid GRES core specification {difference}",
    cause="unrelated",
    strength=0.44,
    title="slurm.conf describes the node differently from its hardware: {difference}",
    why="A node that has less than slurm.conf says is drained or down; one that has more only wastes it.",
)
says(
    "slurm-not-there",
    "Munge encode failed",
    "Unable to contact slurm controller",
    "failed to fetch remote configs",  # slurmd and sackd without a slurm.conf of their own
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.credentials",
    strength=0.78,
    where=lambda groups, line: "slurm_load_" not in line,  # squeue, sinfo: who only asks
    title="Slurm's commands reach no munged on this host, or no slurmctld",
    why="Without the socket of munged nothing can authenticate (a container needs it mounted); without the controller no step starts.",
)
says(
    "adapters-not-handed-out",
    "requested number of devices unavailable for rdma/{resource:word}",
    "Insufficient rdma/",
    cause="ib.device-not-found",
    strength=0.76,
    title="the node has no (free) RDMA device for the pod",
    why="The RDMA device plugin has nothing to hand out: no adapter found, its port down, or all of them given away.",
)
says(
    "rdma-plugin-failed",
    "can not change : incorrect RDMA subsystem network namespace",
    "can not get RDMA subsystem network namespace mode",
    "Fail to configure sriov; error = ",
    "no devices in device pool, creating empty resource server for",
    "no Rdma Devices were found for resource",
    "missing RDMA device spec for device",
    cause="ib.device-not-found",
    strength=0.8,
    title="the RDMA device plugin of the node has no device to hand out",
    why="Its selectors fit no adapter, the adapter's driver made no RDMA device (rdma_cm, umad, uverbs; issm for InfiniBand) or no virtual functions, or the node's RDMA name spaces are exclusive "
    "(`rdma system set netns shared`) where the shared plugin needs them shared.",
)
says(
    "ended-with-error",
    "0/1     Error",
    "CrashLoopBackOff",
    "Back-off restarting failed container",
    "0/{count:int} {}Error ",
    "BackoffLimitExceeded",
    "reached the specified backoff limit",
    "jobset failed due to {reason}",
    " FAILED {}:",
    "JobState=FAILED",
    "(status: FAILED",  # SkyPilot: FAILED, FAILED_SETUP, FAILED_DRIVER
    " exited on signal {signal:int}",
    role=Role.SYMPTOM,
    fold="a program ended with an error",
    why="The scheduler saw a program end with an exit code or a signal; the program's own log says why.",
    where=lambda groups, line: (
        re.search(r"\b0/\d+\s+Error\b|ack-?[Oo]ff|FAILED\s+\d+:\d+|State=|status:|signal|jobset", line) is not None
    ),
)
says(
    "neighbour-table-full",
    "neighbor table overflow",
    "neighbour table overflow",
    cause="net.firewall",
    strength=0.84,
    title="the kernel's table of neighbours (ARP) is full: packets to further hosts are dropped",
    why="More hosts on the link than net.ipv4.neigh.default.gc_thresh3 admits: connections to some peers fail at random.",
)
