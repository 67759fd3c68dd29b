"""Kubernetes and its kin: images, pods, volumes, device plugins."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

_NOT_THERE = re.compile(
    r"not found|manifest unknown|pull access denied|does not exist|unauthori[sz]ed|no basic auth|40[134] (?:Not|Forb|Unau)",
    re.IGNORECASE,
)


def _no_image(line: str) -> bool:
    """Whether a registry answered that it has no such image, or not for this job."""
    return _NOT_THERE.search(line) is not None and re.search(r"image|manifest|pull|reference", line) is not None


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
    "volume-not-mounted",
    "MountVolume.SetUp failed",
    "Unable to attach or mount volumes",
    "mount.nfs: ",
    "mount.lustre: ",
    "Multi-Attach error for volume",
    "AttachVolume.Attach failed",
    cause="sys.clock-or-dns-or-fs",
    page="sys.clock-or-dns-or-fs.not-mounted",
    strength=0.74,
    title="a volume or file system could not be mounted",
    why="Without its volume the pod or job cannot start; its peers wait for it.",
    where=lambda groups, line: (
        not line.endswith(" not registered")  # the kubelet of a pod that has already ended
        and "mount.nfs: trying" not in line
    ),
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
    "gpus-not-handed-out",
    "requested number of devices unavailable for nvidia.com/{resource:word}",
    "requested number of GPUs unavailable. ",
    "device marked unhealthy",
    "cannot allocate unhealthy devices nvidia.com/{resource:word}",
    cause="gpu.not-visible",
    strength=0.74,
    title="the node has fewer healthy GPUs than it should: its device plugin hands out no more",
    why="The device plugin withdrew a GPU, mostly after an Xid: the node's kernel log names it.",
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
    "device-plugin-failed",
    "Allocate failed due to rpc error",
    "Allocate failed due to device plugin",
    "unable to find GPU device allocation by scheduler, which is unexpected",
    "Failed to prepare dynamic resources: ",
    "endpoint not found in cache for a registered resource",
    cause="gpu.not-visible",
    strength=0.62,
    title="the node's device plugin (or DRA driver) does not hand out its devices: it failed, or restarts",
    why="The kubelet asks it for the pod's GPUs, and that did not answer. Its own pod on the node says why.",
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
    pattern=re.compile(r"\b0/\d+\s+Error\b|ack-?[Oo]ff|FAILED\s+\d+:\d+|State=|status:|signal|jobset"),
)
says(
    "kubelet-stops",
    "failed liveness probe, will be restarted",
    "failed startup probe, will be restarted",
    "Preempted by ",
    "NodeNotSchedulable",
    "Marking for deletion Pod",
    "Evicted: {}",
    "DisruptionTarget",
    "Shutdown manager",
    "ScaleDown: deleting pod",
    cause="launch.killed",
    strength=0.93,
    title="Kubernetes stopped the pod (probe, preemption, eviction or drain)",
    why="The kubelet or the scheduler ended the container on purpose; the exit code (137 or 143) is theirs, not the memory limit's.",
    where=lambda groups, line: "memory" not in line.lower(),
)
says(
    "probe-failed",
    "Liveness probe failed",
    "Startup probe failed",
    "Readiness probe failed",
    cause="launch.killed",
    strength=0.6,
    title="a Kubernetes probe of the pod failed",
    why="After failureThreshold failures in a row the kubelet restarts the container; one alone means nothing.",
)
