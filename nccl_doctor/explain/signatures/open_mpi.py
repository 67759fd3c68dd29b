"""What Open MPI's launcher (ORTE, since 5.0 PRRTE) and its transports refuse: the texts of their ``help-*.txt`` files."""

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
    strength=0.92,
    title="two hosts run different versions of Open MPI",
    why="mpirun and the daemon that it started on another host compare their versions: PATH or LD_LIBRARY_PATH of a login that is not interactive finds another one. --prefix, or mpirun called by its whole path, takes its own everywhere.",
)
says(
    "mpi-transports-differ",
    "selected pml {mine:word}, but peer {peer} on {other} selected pml {theirs:word}",
    cause="net.plugin",
    strength=0.86,
    title="the MPI processes chose different transports ({mine} and {theirs})",
    why="Each process takes the best transport that opens for it, and all must take the same: some cannot use UCX, its adapter or its shared memory. --mca pml ucx shows by its error which process cannot.",
)
says(
    "mpi-transport-missing",
    "No components were able to be opened in the {framework:word} framework",
    "PML {name:word} cannot be selected",
    cause="net.plugin",
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
    title="an MPI peer went away: what it said itself is the cause",
    why="Open MPI says itself that the peer's failure is what needs to be looked at.",
)
says(
    "mpi-left-unbound",
    "tried to bind a process but failed.  This is a",
    "tried to bind a new process, but something went wrong and the",
    role=Role.HARMLESS,
    why="Open MPI could not bind a process to cores (often in a container) and goes on: it may be slower, and nothing has failed.",
)
