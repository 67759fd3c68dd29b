"""Slurm: its daemons, nodes, steps and credentials; and what any scheduler refuses at submission."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

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
    where=lambda groups, line: not re.search("credential|layout tasks|cpu bind|Can't find an address", line),
)
says(
    "slurm-unknown-address",
    "can't find address for host {node:word}, check slurm.conf",
    "Can't find an address, check slurm.conf",
    "Unable to find address for host {node:word}",
    cause="sys.clock-or-dns-or-fs",
    strength=0.8,
    title="Slurm cannot resolve the name of one of the job's nodes",
    why="The node that forwards the launch knows no address for the name: its slurm.conf, /etc/hosts or DNS lacks the node (added since, or a cloud's).",
)
says(
    "step-waits",
    "step creation temporarily disabled, retrying ({reason})",
    "step creation still disabled, retrying ({reason})",
    "step creation temporarily disabled, retrying",
    "step creation still disabled, retrying",
    why="srun waits for CPUs, GPUs or memory of its job that other steps hold. What it means, the diagnosis of the same name tells.",
)
says(
    "step-created",
    "srun: Step created for ",
    "srun: Job step created",
    why="srun got what it waited for.",
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
    "failed on node {node}: Job credential expired",
    "failed on node {node}: Expired or invalid job credential",
    "failed on node {node}: Invalid job credential",
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
    "slurm-io-refused",
    "launch failed: Slurmd could not connect IO",
    cause="net.firewall",
    strength=0.7,
    title="a node cannot connect back to srun",
    why="slurmd opens connections to ports of the host where srun runs (SrunPortRange): a firewall between them, or a name that leads elsewhere.",
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
    "slurm-cgroup",
    # src/plugins/cgroup and src/interfaces/cgroup.c of Slurm 25.11
    "/sys/fs/cgroup/{file}' failed: {error}",
    "unable to add pids to '/sys/fs/cgroup",
    "slurmstepd: error: {}nable to create {}cgroup",
    "slurmstepd: error: {}nable to instantiate {}cgroup",
    "nable to move stepd pid to its dedicated cgroup",
    "slurmstepd scope could not be set",
    "cannot setup the scope for",
    "cgroup namespace '{name:word}' not mounted. aborting",
    "cgroup filesystem not mounted in /sys/fs/cgroup",
    "failure enabling {kind:word} enforcement",
    "Cannot enable subtree_control at the top level",
    "cannot initialize cgroup directory for stepds",
    cause="sys.container",
    page="sys.container.cgroup",
    strength=0.8,
    title="Slurm cannot put the step into a cgroup on its node",
    why="Slurm's plugin for cgroups (v1 or v2) does not find the hierarchy that it set up: the step does not start there, or runs without its limits.",
    where=lambda groups, line: "slurm" in line,
)
says(
    "slurm-pmix-connect",
    # src/plugins/mpi/pmix of Slurm 25.11: `mpi/pmix_vN: FUNCTION: HOST [NODE]: FILE:LINE: MESSAGE`
    "mpi/pmix{version:word} {}Cannot establish ",
    "mpi/pmix{version:word} {}Unable to connect to",
    "mpi/pmix{version:word} {}Was unable to wait for the parent",
    "mpi/pmix{version:word} {}exceeded the retry limit",
    "mpi/pmix{version:word} {}Cannot send {}to ",
    "mpi/pmix{version:word} {}UCX send request failed",
    "mpi/pmix{version:word} {}Connection failed from",
    cause="net.firewall",
    strength=0.7,
    title="Slurm's daemons on the job's nodes cannot connect to each other for PMIx",
    why="The slurmstepds of a step connect to each other on ports chosen anew (over UCX, where PMIxDirectConnUCX asks for it): a firewall between "
    "the nodes, a name that leads elsewhere, or a node that is gone. SLURM_PMIX_DIRECT_CONN=false lets them go over slurmd's port.",
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
    "Killing job {job:int}: gres/gpu count mismatch on node {node:word} (",
    cause="gpu.not-visible",
    strength=0.9,
    title="a node reports fewer GPUs to Slurm than slurm.conf names: Slurm takes it out of service",
    why="slurmd finds fewer devices than Gres= says: a GPU is gone, its driver is not loaded, MIG was changed, or gres.conf is wrong.",
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
    "slurm-gpus-left-out",
    "The following autodetected GPUs are being ignored",
    "Discarding the following config-only GPU due to lack of File specification",
    "Could not find an unused configuration record with a GRES type that is a substring of system device",
    "If using AutoDetect the amount of GPUs configured in slurm.conf does not match what was detected",
    "gres.conf duplicate records for gpu",
    "gres.conf for gpu, some records have ",
    'gres/gpu lacks "File=" parameter for node {node:word}',
    cause="gpu.not-visible",
    strength=0.74,
    title="slurm.conf and gres.conf do not name the node's GPUs as Slurm finds them, so it leaves some out",
    why="slurmd matches Gres=gpu:TYPE:COUNT with what it detects. `slurmd -G` on the node prints what it finds; a type is a part of that name, and records without AutoDetect need File=.",
)
says(
    "slurm-node-too-small",
    "Node {node:word} has low real_memory size",
    "Node {node:word} has low cpu count",
    "Node {node:word} has low socket*core*thread",
    "Node {node:word} has low tmp_disk size",
    "has low real_memory size",
    "Low RealMemory",
    "has low cpu count",
    "Low CPUs",
    "ow socket*core*thread",
    "has low tmp_disk size",
    "Low TmpDisk",
    "State={}INVALID_REG",  # scontrol show node
    cause="sys.node-failure",
    strength=0.7,
    title="a node has less memory, CPUs or disk than slurm.conf says, or other ones: Slurm takes it out of service",
    why="A memory module failed, threads were switched off, or the node's line in slurm.conf says more than `slurmd -C` prints there.",
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
    "step-cancelled",
    "slurmstepd: error: *** STEP {step} ON {host} CANCELLED AT {time}",
    role=Role.SYMPTOM,
    cause="launch.killed",
    strength=0.5,
    fold="Slurm cancelled the step",
    title="Slurm cancelled the step",
    why="Slurm ended the step: after a task failed (srun --kill-on-bad-exit), at the time limit, or on request.",
)
# Nothing answered, or its credentials did not fit; the job was over; too little of what was asked for; an interactive job of qsub.
_NOT_REFUSED = (
    r"contact|[Tt]imed out|Zero Bytes|[Aa]uthentication|already completing|"
    r"node configuration is not|More processors|waiting for job|^job \S+ (?:ready|completed)"
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
