"""What MPI refuses: Open MPI's launcher (ORTE, since 5.0 PRRTE) and transports in their ``help-*.txt``, Intel MPI, MPICH."""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "mpirun-slots",
    "There are not enough slots available in the system to satisfy the {asked:int}",
    "There are not enough slots available in the Grid Engine",
    "There are not enough slots available in the system or not enough CPUs",
    "All nodes which are allocated for this job are already filled",
    "This is more processes than we can launch under the following",
    "A request was made to bind to that would result in binding more",
    "A request was made to bind that would require binding",
    "cannot be met due to there being more processes on a node than",
    cause="launch.world-size",
    page="launch.world-size.slots",
    strength=0.9,
    title="mpirun is asked for more processes than its hosts have slots or cores: {asked}",
    why="Open MPI counts one slot a core, or what slots= in the hostfile, :N behind --host or the scheduler says, and starts no process beyond that.",
)
says(
    "mpirun-host-outside",
    "At least one of the requested hosts is not included in the current allocation",
    "Some of the requested hosts are not included in the current allocation",
    "A hostfile was provided that contains at least one node not",
    cause="launch.world-size",
    page="launch.world-size.slots",
    strength=0.9,
    title="mpirun is given a host that the scheduler's allocation does not have",
    why="Under a scheduler mpirun starts processes on its hosts only, by the names that it calls them.",
)
says(
    "mpirun-as-root",
    "has detected an attempt to run as root",
    cause="unrelated",
    strength=0.9,
    title="mpirun does not run as root without --allow-run-as-root",
    why="In most containers everybody is root. Nothing was started. OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 allow it, too.",
)
says(
    "mpirun-no-ssh",
    'The value of the MCA parameter "plm_{agent:word}_agent" was set to a path',
    cause="unrelated",
    strength=0.9,
    title="mpirun finds no ssh program here: install openssh-client in this image",
    why="mpirun looks for its means to start processes before it starts any, on one host as well. OMPI_MCA_plm=isolated does without on one host.",
)
says(
    "mpirun-cannot-launch",
    "was unable to find the specified executable file, and therefore",
    "was unable to launch the specified application as it could not",
    'tried to fork a new process via the "execve" system call but',
    "No executable was specified on the {program:word} command line",
    "was unable to open the hostfile:",
    "detected a bad parameter in the hostfile:",
    "detected a parse error in the hostfile:",
    'was not able to find the executable "orted" in',
    cause="unrelated",
    strength=0.88,
    title="mpirun cannot use what it is given: a program, a directory, a hostfile or an option",
    why="It is not there, or misspelt. The lines below it name which, and on which node: the program and the directory must be there on every host.",
)
says(
    "mpirun-versions",
    "detected a mismatch in versions between two processes",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.92,
    title="two hosts run different versions of Open MPI",
    why="mpirun and the daemon that it started on another host compare their versions: PATH or LD_LIBRARY_PATH of a login that is not interactive finds another one. --prefix, or mpirun called by its whole path, takes its own everywhere.",
)
says(
    "mpi-transports-differ",
    "selected pml {mine:word}, but peer {peer} on {other} selected pml {theirs:word}",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.86,
    title="the MPI processes chose different transports ({mine} and {theirs})",
    why="Each process takes the best transport that opens for it, and all must take the same: some cannot use UCX, its adapter or its shared memory. --mca pml ucx shows by its error which process cannot.",
)
says(
    "mpi-transport-missing",
    "No components were able to be opened in the {framework:word} framework",
    "PML {name:word} cannot be selected",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.72,
    title="MPI is told to use a transport that does not open here",
    why="The transport is named (--mca pml, OMPI_MCA_pml), so no other is tried; its library is missing, or finds no device that it supports. ompi_info | grep pml shows what is built in; without the setting Open MPI takes another.",
)
says(
    "mpi-peer-hung-up",
    "An MPI communication peer process has unexpectedly disconnected",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.46,
    fold="an MPI peer disconnected",
    title="an MPI peer went away: its own output says why",
    why="Open MPI says itself that the peer's failure is what needs to be looked at.",
)
says(
    "mpi-left-unbound",
    "tried to bind a process but failed.  This is a",
    "tried to bind a new process, but something went wrong and the",
    role=Role.HARMLESS,
    why="Open MPI could not bind a process to cores (often in a container) and goes on: it may be slower, and nothing has failed.",
)
says(
    "openib-no-scheme",
    "No OpenFabrics connection schemes reported that they were able to be",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.46,
    fold="Open MPI's openib leaves out a port",
    title="Open MPI's openib cannot connect over a port of the adapter, and leaves it out",
    why="No connection scheme (udcm, rdmacm, --mca btl_openib_cpc_include) fits it: rdmacm wants an address of its own on the port. UCX (--mca pml ucx) replaces openib.",
)
says(
    "mpi-collectives-library",
    "ml_discover_hierarchy exited with error",
    "is not available but requested in hierarchy:",
    "mca_coll_hcoll_comm_query() Hcol library init failed",
    "UCC library doesn't support MPI_THREAD_MULTIPLE",
    "UCP worker does not support MPI_THREAD_MULTIPLE",
    "mca_coll_ucc_init_ctx() UCC {}failed",
    "[LOG_CAT_P2P] failed to init ucx",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.4,
    fold="MPI's collectives library (hcoll, UCC) does not start",
    title="MPI's collectives library (hcoll or UCC) does not start, and MPI uses its own collectives",
    why="Slower, no failure of its own: -mca coll_hcoll_enable 0 (coll_ucc_enable 0) asks for it no more.",
)

# --- Intel MPI and MPICH
says(
    "intel-mpi-fabric",
    " fabric is not available and fallback fabric is not enabled",
    "MPI startup(): cannot open dynamic library lib",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.68,
    title="Intel MPI cannot use the fabric that it was told to use",
    why="I_MPI_FABRICS (or the build's default) names a fabric whose library (libdat2.so, libtmi.so, libfabric) or device is missing here; I_MPI_FALLBACK=1 lets it take another.",
)
says(
    "mpi-reads-no-memory",
    "Cannot read from remote process",
    "process_vm_readv{}Operation not permitted",
    cause="sys.container",
    strength=0.82,
    title="MPI may not read the memory of its neighbour process: ptrace is restricted",
    why="Shared-memory transports copy with process_vm_readv, which kernel.yama.ptrace_scope, seccomp or a container without SYS_PTRACE forbid.",
    where=lambda groups, line: "MPI" in line or "process_vm_readv" in line,
)
says(
    "hydra-gives-up",
    "process manager error waiting for completion",
    "demux engine error waiting for event",
    "launcher returned error waiting for completion",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.4,
    fold="Hydra's processes give up",
    title="mpiexec (Hydra) lost one of its proxies or processes, and does not say why",
    why="Each caller adds its line on the way up; the first line, or the process that ended first, tells more.",
)
