"""What MPI says of its start and its transports: Open MPI (its launcher is ORTE, since 5.0 PRRTE), MPICH, Intel MPI."""

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
    'pbs_tmrsh: host "{host}" is not a node in job',
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
    "mpirun-in-mpirun",
    "does not support recursive calls of {program:word}",
    cause="unrelated",
    strength=0.92,
    title="{program} was called inside of a job that {program} started: start the program itself",
    why="A script that calls {program} must be run once, not by each process of another {program}.",
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
    "unable to open host file: ",  # hydra
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

says(
    "mpi-no-such-rank",
    "Failed: MPI error {place} '6'",
    "MPI_ERR_RANK",
    cause="launch.world-size",
    strength=0.72,
    title="MPI has no rank of that number: the job was started with fewer processes than it was built for",
    why="Open MPI's error 6 is MPI_ERR_RANK. TensorRT-LLM's engines demand as many MPI processes as they were built for.",
)
says(
    "mpi-no-pmi",
    "but OMPI was not built with SLURM",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.86,
    title="srun starts the tasks, and their Open MPI was built without Slurm's PMI: use mpirun, or an Open MPI with --with-pmix and srun --mpi=pmix",
    why="Open MPI's processes get rank and peers from PMI(x); without it each of them is alone.",
)
says(
    "srun-mpi-plugin",
    "can not load PMIx library",
    "Couldn't load specified plugin name for mpi/",
    "srun: error: Invalid MPI type",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.86,
    title="srun cannot load the MPI plug-in that was asked for: choose one that `srun --mpi=list` shows, or install PMIx where Slurm looks for it",
    why="Slurm loads PMIx when a step starts; the plug-in is there, and the library that it was built with is not.",
)
says(
    "mpi-daemon-missing",
    "orted: command not found",
    "prted: command not found",
    "hydra_pmi_proxy: command not found",
    "orted: No such file or directory",
    "prted: No such file or directory",
    "hydra_pmi_proxy: No such file or directory",
    cause="launch.env-missing",
    strength=0.93,
    title="mpirun's daemon is not found on a host: the PATH that ssh gives there lacks MPI, or MPI is not installed there",
    why="mpirun starts a daemon of its own installation on every host; a shell without login reads other files than an interactive one.",
)
says(
    "mpi-daemons-differ",
    "ORTE_ERROR_LOG: Data unpack {what} in file {file} at line",
    "PRTE ERROR: Data unpack {what} in file {file} at line",
    "PMIX ERROR: UNPACK-PAST-END in file {file} at line",
    "PMIX ERROR: UNPACK-INADEQUATE-SPACE in file {file} at line",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.76,
    title="parts of Open MPI do not understand each other's messages: another version or build on one of the hosts, mostly",
    why="mpirun, its daemons and the program must come from the same Open MPI (and PMIx); compare `ompi_info --version` on all hosts, as ssh finds it.",
    where=lambda groups, line: "show_help" not in groups["file"],  # only a message that got lost
)
says(
    "pmix-unpack",
    "PMIX ERROR: UNPACK-FAILURE in file {file}",
    "UNPACK-PMIX-VALUE: UNSUPPORTED TYPE {type:int}",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.46,
    fold="PMIx cannot read what its peer sent",
    title="PMIx cannot read what its peer sent: another version in the launcher (srun, mpirun) than in the program, or a fault of a release",
    why="Versions of PMIx know each other's values only in part. Where the ranks go on nothing was lost but a setting.",
)
says(
    "mpi-nbc",
    "NBC_Progress: an error {code:int} was found during schedule",
    "MPI Error in NBC subrequest {request:word} : {code:int}",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.5,
    fold="a collective of Open MPI broke off",
    title="a nonblocking collective of Open MPI broke off: its transport gave error {code}",
    why="libnbc passes on what the transport below it reported (17 is MPI_ERR_INTERN); that one's own message tells more.",
)
says(
    "mpi-component-missing",
    "stopped checking at the first component that it did not find",
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.62,
    title="MPI, or PMIx, was told to use a component that its installation here does not have",
    why="The lines below name framework and component. A launcher outside of a container passes its own choice on (PMIX_MCA_psec=munge, OMPI_MCA_btl=...).",
)
says(
    "mpi-no-server",
    "OPAL ERROR: Unreachable in file {file:word}",
    role=Role.SYMPTOM,
    cause="sw.library-conflict",
    page="sw.library-conflict.mpi",
    strength=0.48,
    fold="MPI_Init failed",
    title="MPI could not initialise: usually a process that another MPI's mpirun started, or none",
    why="Open MPI reaches no PMIx server: mpirun and libmpi are of different installations, or srun was used without PMIx.",
)
says(
    "mpi-cannot-start",
    "Fatal error in PMPI_Init",
    "Fatal error in internal_Init",
    "Fatal error in MPI_Init",
    "An error occurred in MPI_Init",
    "It looks like {call} failed for some reason",
    "PMI_KVS_Get returned -1",
    "PMI{}_Init returned",
    role=Role.SYMPTOM,
    cause="launch.rdzv",
    strength=0.46,
    fold="MPI could not start",
    title="MPI itself could not start: its processes did not find each other, or a transport did not open",
    why="MPICH, Intel MPI or Open MPI failed inside MPI_Init, before the program began: hosts that do not reach each other, a launcher of another MPI "
    "than the library's, or a component or transport that is missing (in a container often munge). Two ranks of 'hello world' under the same launcher show it without NCCL.",
)
says(
    "mpi-interfaces",
    "None of the TCP networks specified to be included",
    "invalid value was given for oob_tcp_if_include",
    "invalid value was given for btl_tcp_if_include",
    "Unknown interface name",
    "cannot find a corresponding process entry",
    "network device '{device}' is not available",
    cause="net.wrong-interface",
    strength=0.84,
    title="MPI or UCX is told to use an interface that does not exist here",
    why="An interface list names what this host does not have.",
)
says(
    "mpi-no-way",
    "At least one pair of MPI processes are unable to reach each other",
    "MPI_INIT has failed because at least one MPI process is unreachable",
    "BTLs attempted: {names}",
    "Unreachable{}(-12) instead of",
    cause="net.wrong-interface",
    page="net.plugin.transport",
    strength=0.66,
    title="MPI finds no way between two of its processes: no interface that both can use, or TCP is left out of its BTLs",
    why="Open MPI compared the addresses of both hosts. 'BTLs attempted' without tcp: --mca btl leaves it out, or btl_tcp_if_include names no interface here.",
)
says(
    "mpi-another-process",
    "received unexpected process identifier",
    cause="net.wrong-interface",
    strength=0.92,
    title="MPI connected to another process than it meant: several hosts have this address",
    why="An address of a bridge (docker0, virbr0) is the same on every host. btl_tcp_if_include with the network between the hosts mends it.",
)
says(
    "mpi-connect",
    "Open MPI failed to TCP connect to a peer MPI process",
    "unable to complete a TCP connection",
    "was unable to connect to the remote daemon",
    "tcp_peer_send_blocking: send() to socket",
    "unable to make a TCP connection back",
    "is unable to establish a communication connection to the",
    cause="net.firewall",
    strength=0.72,
    title="MPI processes cannot connect to each other: firewall or wrong interface",
    why="MPI's own TCP connections fail although ssh works.",
)
says(
    "mpi-connect-address",
    "Message:    connect() to {address} failed",
    why="The address that Open MPI could not connect to (its help-mpi-btl-tcp.txt).",
)
says(
    "mpi-translated",
    "btl: tcp: Match incoming connection from {peer} with locally known IP {address} failed",
    "Open MPI detected an inbound MPI TCP connection request from a peer",
    "help-mpi-btl-tcp.txt / dropped inbound connection",
    "Open MPI accepted a TCP connection from what appears to be a",
    cause="net.wrong-interface",
    strength=0.72,
    title="a peer's MPI connections come from an address that it has not announced (several networks, a bridge or NAT in between)",
    why="Open MPI knows its peers by their addresses, and drops others. --net=host, or btl_tcp_if_include with the network that reaches all hosts.",
)
says(
    "mpi-daemon-address",
    ".0;tcp://{addresses}",
    why="Open MPI's mpirun tells its daemons where to call back: all of its addresses, or the only one.",
)
says(
    "mpi-daemon-lost",
    "has lost communication with a remote daemon",
    cause="sys.node-failure",
    strength=0.48,
    title="mpirun lost its daemon on a host: the host, the network to it, or the daemon itself failed",
    why="Open MPI's ORTE and PRTE say this when the TCP connection to a daemon ends. What that host said decides.",
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
    "process_vm_writev{}Operation not permitted",
    cause="sys.container",
    strength=0.82,
    title="MPI may not read the memory of its neighbour process: ptrace is restricted",
    why="Shared-memory transports copy with process_vm_readv, which kernel.yama.ptrace_scope, seccomp or a container without SYS_PTRACE forbid.",
    where=lambda groups, line: "MPI" in line or "process_vm_" in line,
)
says(
    "ucx-foreign-address",
    "process_vm_readv(pid={}returned {value:int}: Bad address",
    "process_vm_writev(pid={}returned {value:int}: Bad address",
    "process_vm_readv(pid={}returned {value:int}: No such process",
    "process_vm_writev(pid={}returned {value:int}: No such process",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.58,
    title="UCX copies from an address that its neighbour process does not have: GPU memory taken for the host's, or containers with process numbers of their own",
    why="Cross-memory attach names a process by its number. UCX_TLS=^cma does without; containers of one host need one PID name space (--pid=host) for it.",
)
says(
    "mpi-singleton",
    "This singleton init program attempted to access some feature",
    cause="launch.env-missing",
    strength=0.8,
    title="MPICH's processes find no process manager: each takes itself for the only one of the job",
    why="srun speaks another PMI than this MPICH was built for (srun --mpi=pmi2 or pmix), or mpiexec was left out.",
)
says(
    "hydra-connect",
    'unable to connect from "{own}" to "{host}" ({error})',
    cause="net.master-unreachable",
    strength=0.74,
    title="{own} cannot connect back to mpiexec on {host}: {error}",
    why="Hydra (MPICH, MVAPICH, Intel MPI) starts a proxy on each host, which connects to a random port of mpiexec: a firewall, or an address of that name that is wrong from there.",
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
