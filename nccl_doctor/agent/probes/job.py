"""The processes of a distributed job as they are now: read twice, never touched (no signal, no ptrace stop)."""

import base64
import errno
import glob
import os
import re
import socket
import stat
import time
import zlib
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from nccl_doctor.agent import connections, stacks
from nccl_doctor.agent.probes.system import memory, mount_of, mounts
from nccl_doctor.agent.probing import ProbeTrouble, first_line, listed, path, probe, read_text
from nccl_doctor.agent.redaction import redact_text

INTERVAL_S = 3.0
PROCESSES = 1024  # of jobs, on one host
CHILDREN_STACKS = 64
CONNECTIONS = 600  # of one rank: a full mesh of thousands of ranks would be more than a reply holds
THREADS_TOLD = 6  # beside the main thread: those that run, or are stuck in the kernel
ENVIRON_LIMIT = 1 << 20
DUMP_LIMIT = 4 << 20  # bytes of one flight-recorder dump, and
DUMPS_LIMIT = 5 << 20  # of all of a host's, packed: a reply has 16 MiB
RAS_PORT = 28028
RAS_LIMIT_S = 6.0
RAS_BYTES = 2 << 20

# No other variable of a process leaves the host.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
VARIABLES = (
    *RANK_VARIABLES,
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_RAS_ADDR",
    "NCCL_RAS_ENABLE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
)
_PLACES = ("HOME", "XDG_CACHE_HOME")  # where torch writes dumps unless told; read, not sent
_DUMP_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# System calls whose first argument is the file they wait for; by machine.
_FILE_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 17: "pread", 18: "pwrite", 19: "readv", 20: "writev", 40: "sendfile", 72: "fcntl",
        73: "flock", 74: "fsync", 75: "fdatasync", 3: "close", 5: "fstat", 76: "truncate", 77: "ftruncate",
        285: "fallocate", 45: "recvfrom", 44: "sendto", 43: "accept", 42: "connect",
    },
    "aarch64": {
        63: "read", 64: "write", 67: "pread", 68: "pwrite", 65: "readv", 66: "writev", 71: "sendfile", 25: "fcntl",
        32: "flock", 82: "fsync", 83: "fdatasync", 57: "close", 80: "fstat", 46: "ftruncate", 47: "fallocate",
        207: "recvfrom", 206: "sendto", 202: "accept", 203: "connect",
    },
}  # fmt: skip
_WRAPPERS = re.compile(
    r"(ba|da|z|k|fi|c|tc)?sh|env|numactl|taskset|timeout|time|nice|stdbuf|sudo|srun|slurmstepd|torchrun|tini|dumb-init|"
    r"mpirun|mpiexec|orted|prted|hydra_pmi_proxy|tee|nsys|ncu|perf|strace|gdb|ssh"
)


@probe("job", "job", limit_s=40.0)
def job(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Every process that bears a rank, its children, their connections, stacks, memory and dumps.

    Arguments: ``interval_s`` between the two readings, ``stacks`` (take them), ``machine`` (the processor for which
    the controller has a py-spy to send, if asked for it by ``tool-missing``) and ``py_spy`` (that program, packed).
    """
    program, no_stacks = _program(arguments)
    found, refused = _processes()
    pids = [process["pid"] for process in found]
    ranks = [process["pid"] for process in found if process["role"] == "rank"]
    children = [process["pid"] for process in found if process["role"] == "child"][:CHILDREN_STACKS]
    opened = {pid: _opened(pid) for pid in ranks}
    inodes = {pid: _inodes(links) for pid, links in opened.items()}
    started = time.monotonic()
    first = _look(pids, inodes, program, ranks)
    interval_s = float(arguments.get("interval_s", INTERVAL_S)) if ranks else 0.0
    time.sleep(max(0.0, interval_s - (time.monotonic() - started)))
    second = _look(pids, inodes, program, ranks + children)
    for process in found:
        process["readings"] = [look["processes"].get(process["pid"]) for look in (first, second)]
        process["stacks"] = [look["stacks"].get(process["pid"]) for look in (first, second)]
        process["connections"] = _connections(process["pid"], first, second)
        process["devices"] = _devices(opened.get(process["pid"], []))
    dumps, dump_problems = _dumps(found)
    for process in found:
        process.pop("dump_prefixes", None)
    return {
        "uid": os.geteuid(),
        "namespace": _link("/proc/self/ns/net"),
        "interval_s": round(second["at"] - first["at"], 3),
        "processes": found,
        "refused": refused,
        "no_stacks": no_stacks if ranks else "",
        "ras": _ras_reports(found, second, interval_s),
        "dumps": dumps,
        "dump_problems": dump_problems,
        "memory": [first["memory"], second["memory"]],
        "pressure": _pressure(),
        "total_memory": memory(),
    }


def _program(arguments: Dict[str, Any]) -> Tuple[str, str]:
    """py-spy to run, or why there are no stacks. Asks the controller for its copy where that one runs here."""
    if not arguments.get("stacks", True):
        return "", "left out"
    if arguments.get("py_spy"):
        try:
            return stacks.hold(str(arguments["py_spy"])), ""
        except (OSError, AttributeError, ValueError) as error:  # no memfd (Linux before 3.17)
            return "", "the controller's py-spy cannot be held in memory: %s" % error
    own = stacks.find()
    if own:
        return own, ""
    if arguments.get("machine") == stacks.machine():
        raise ProbeTrouble("tool-missing", "no py-spy on this host", {"program": "py-spy"})
    return "", "no py-spy on this host, and none for %s beside nccl-doctor (pip install py-spy)" % stacks.machine()


# --- which processes


def _processes() -> Tuple[List[Dict[str, Any]], Dict[str, Any]]:
    """The processes that bear a rank, with their role, and what this user may not read."""
    uptime_s = float((read_text("/proc/uptime", 256) or "0").split()[0])
    found: Dict[int, Dict[str, Any]] = {}
    refused: List[str] = []
    for name in listed("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environment = _environment(int(name))
        except PermissionError:
            comm = first_line("/proc/%s/comm" % name) or ""
            if comm.startswith(("python", "pt_main")):
                refused.append(name)
            continue
        if environment is None or not any(environment.get(variable, "").isdigit() for variable in RANK_VARIABLES):
            continue
        described = _describe(int(name), environment, uptime_s)
        if described and len(found) < PROCESSES:
            found[int(name)] = described
    _give_roles(found)
    for process in found.values():
        parent = process["parent"]
        process["launcher"] = "" if parent in found else (first_line("/proc/%d/comm" % parent) or "")[:40]
    return [found[pid] for pid in sorted(found)], {"count": len(refused), "pids": [int(pid) for pid in refused[:8]]}


def _environment(pid: int) -> Optional[Dict[str, str]]:
    """The named variables of a process; None where it is gone, or a kernel thread. A zombie's are gone, too."""
    text = read_text("/proc/%d/environ" % pid, ENVIRON_LIMIT)
    if not text:
        return None
    pairs = (item.partition("=") for item in text.split("\0"))
    return {name: value[:300] for name, _, value in pairs if name in VARIABLES + _PLACES}


def _describe(pid: int, environment: Dict[str, str], uptime_s: float) -> Optional[Dict[str, Any]]:
    """What does not change while a process lives; None where it has just ended."""
    fields = _stat(pid)
    try:
        uid = os.stat(path("/proc/%d" % pid)).st_uid
    except OSError:
        return None
    if fields is None:
        return None
    argv = (read_text("/proc/%d/cmdline" % pid, 1 << 16) or "").split("\0")
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "comm": first_line("/proc/%d/comm" % pid) or "",
        "program": os.path.basename(_link("/proc/%d/exe" % pid))[:80],
        "script": redact_text(_script(argv))[:200],
        "uid": uid,
        "start_ticks": int(fields[19]),
        "age_s": round(uptime_s - int(fields[19]) / float(os.sysconf("SC_CLK_TCK")), 1),
        "namespace": _link("/proc/%d/ns/net" % pid),
        "environment": {name: redact_text(environment[name]) for name in VARIABLES if name in environment},
        "dump_prefixes": _dump_prefixes(environment),
    }


def _script(argv: List[str]) -> str:
    """What a Python runs: the script, ``-m module`` or ``-c``; of any other program its name."""
    words = [word for word in argv if word]
    for number, word in enumerate(words[1:], 1):
        if word in ("-m", "-c"):
            return "-m " + words[number + 1] if word == "-m" and number + 1 < len(words) else word
        if not word.startswith("-") and os.path.basename(words[0]).startswith("python"):
            return os.path.basename(word)
    return os.path.basename(words[0]) if words else ""


def _give_roles(found: Dict[int, Dict[str, Any]]) -> None:
    """``rank``: the topmost process of its rank that is no shell, launcher or pinning tool; what is above: ``wrapper``."""
    wrappers = {pid for pid, process in found.items() if _is_wrapper(process)}
    wrappers.update(_launchers(found))
    for pid, process in found.items():
        if pid in wrappers:
            process["role"] = "wrapper"
            continue
        top = process
        for above in _ancestors(process, found):
            if above["pid"] not in wrappers and _rank_of(above) == _rank_of(process):
                top = above
        process["rank_pid"] = top["pid"]
        process["role"] = "rank" if top is process else "child"


def _launchers(found: Dict[int, Dict[str, Any]]) -> Set[int]:
    """Who has only a scheduler's number itself and started processes with a ``RANK``: accelerate, deepspeed, ..."""
    return {
        above["pid"]
        for process in found.values()
        if process["environment"].get("RANK")
        for above in _ancestors(process, found)
        if not above["environment"].get("RANK")
    }


def _ancestors(process: Dict[str, Any], found: Dict[int, Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    above = found.get(process["parent"])
    while above is not None:
        yield above
        above = found.get(above["parent"])


def _rank_of(process: Dict[str, Any]) -> str:
    """The first variable that names a rank, with its value."""
    environment = process["environment"]
    return next((name + environment[name] for name in RANK_VARIABLES if environment.get(name, "").isdigit()), "")


def _is_wrapper(process: Dict[str, Any]) -> bool:
    names = (process["program"] or process["comm"], process["script"])
    return any(_WRAPPERS.fullmatch(name) for name in names) or process["script"].startswith("-m torch.distributed")


# --- one look at all of them


def _look(pids: List[int], inodes: Dict[int, Set[int]], program: str, with_stacks: List[int]) -> Dict[str, Any]:
    """Everything that changes, of all processes, as near to one moment as possible."""
    look: Dict[str, Any] = {"at": time.monotonic(), "processes": {}, "memory": _swapping()}
    for pid in pids:
        look["processes"][pid] = _reading(pid)
    look["connections"] = _tables(inodes)
    look["stacks"] = stacks.take(program, with_stacks) if program and with_stacks else {}
    return look


def _stat(pid: int, task: str = "") -> Optional[List[str]]:
    """/proc/PID/stat from the state on; None where the process is gone."""
    text = read_text("/proc/%d/%sstat" % (pid, task), 4096)
    fields = (text or "").rpartition(")")[2].split()
    return fields if len(fields) > 20 else None


def _reading(pid: int) -> Optional[Dict[str, Any]]:
    """State, CPU time, memory, input and output, and the threads that tell; None where the process has ended."""
    fields = _stat(pid)
    if fields is None:
        return None
    status = _fields("/proc/%d/status" % pid)
    main = _thread(pid, pid)
    others = (_thread(pid, int(tid)) for tid in listed("/proc/%d/task" % pid) if tid != str(pid))
    telling = [thread for thread in others if thread]
    io = _fields("/proc/%d/io" % pid)
    return {
        "state": fields[0],
        "cpu_s": _seconds(fields[11], fields[12]),
        "threads": int(fields[17]),
        "main": main,
        "others": telling[:THREADS_TOLD],
        "switches": _number(status.get("voluntary_ctxt_switches")),
        "tracer": _number(status.get("TracerPid")) or 0,
        "resident_bytes": (_number(status.get("VmRSS")) or 0) * 1024,
        "swapped_bytes": (_number(status.get("VmSwap")) or 0) * 1024,
        "read_bytes": _number(io.get("rchar")),
        "written_bytes": _number(io.get("wchar")),
    }


def _thread(pid: int, tid: int) -> Optional[Dict[str, Any]]:
    """One thread; None where it is gone, or sleeps and is not the main one: hundreds do."""
    place = "task/%d/" % tid
    fields = _stat(pid, place)
    if fields is None or (fields[0] == "S" and tid != pid):
        return None
    thread = {
        "id": tid,
        "name": (_readable("/proc/%d/%scomm" % (pid, place)) or "").strip()[:40],
        "state": fields[0],
        "cpu_s": _seconds(fields[11], fields[12]),
        "waits_in": (_readable("/proc/%d/%swchan" % (pid, place)) or "").strip("0\n")[:60],
    }
    if tid == pid or fields[0] == "D":
        thread.update(_call(pid, place))
        kernel = _readable("/proc/%d/%sstack" % (pid, place)) or ""
        thread["kernel_stack"] = [line.partition("] ")[2][:80] for line in kernel.splitlines()[:8]]
    return thread


def _call(pid: int, place: str) -> Dict[str, Any]:
    """The system call that a thread is in, and the file it waits for where that is its first argument."""
    words = (_readable("/proc/%d/%ssyscall" % (pid, place)) or "").split()
    if len(words) < 2 or not words[0].isdigit():
        return {}
    name = _FILE_CALLS.get(stacks.machine(), {}).get(int(words[0]))
    if name is None:
        return {}
    target = _link("/proc/%d/fd/%d" % (pid, int(words[1], 16)))
    mount = mount_of(target, mounts()) if target.startswith("/") else None
    return {"call": name, "file": redact_text(target)[:200], "file_system": mount["type"] if mount else ""}


def _readable(absolute: str) -> Optional[str]:
    """A file's text; None where it is gone or not ours to read."""
    try:
        return read_text(absolute, 1 << 16)
    except PermissionError:
        return None


def _fields(absolute: str) -> Dict[str, str]:
    pairs = (line.partition(":") for line in (_readable(absolute) or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(text: Optional[str]) -> Optional[int]:
    word = (text or "").split()
    return int(word[0]) if word and word[0].isdigit() else None


def _seconds(*ticks: str) -> float:
    return round(sum(map(int, ticks)) / float(os.sysconf("SC_CLK_TCK")), 2)


def _link(absolute: str) -> str:
    try:
        return os.readlink(path(absolute))
    except OSError:
        return ""


# --- connections


def _opened(pid: int) -> List[str]:
    """What a process's descriptors lead to."""
    return [_link("/proc/%d/fd/%s" % (pid, name)) for name in listed("/proc/%d/fd" % pid)]


def _inodes(links: List[str]) -> Set[int]:
    """The inodes of the sockets among them."""
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def _devices(links: List[str]) -> List[str]:
    """Which kinds of devices that ranks talk through are among them: then TCP is not their only way."""
    kinds = (("gpu", "/dev/nvidia"), ("rdma", "/dev/infiniband/uverbs"))
    return [kind for kind, prefix in kinds if any(link.startswith(prefix) for link in links)]


def _tables(inodes: Dict[int, Set[int]]) -> Dict[int, Dict[int, Dict[str, Any]]]:
    """Process id -> its TCP sockets by inode. The kernel is asked once for each network namespace."""
    tables: Dict[str, connections.Table] = {}
    own = _link("/proc/self/ns/net")
    found = {}
    for pid, wanted in inodes.items():
        namespace = _link("/proc/%d/ns/net" % pid) or own
        if namespace not in tables:
            try:
                tables[namespace] = connections.own_namespace() if namespace == own else connections.of_process(pid)
            except OSError:
                tables[namespace] = connections.of_process(pid)
        found[pid] = {inode: entry for inode, entry in tables[namespace].items() if inode in wanted}
    return found


def _connections(pid: int, first: Dict[str, Any], second: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The sockets of a process at the second reading, with what the first said of them."""
    before, now = (look["connections"].get(pid, {}) for look in (first, second))
    told = []
    for inode, entry in sorted(now.items()):
        earlier = before.get(inode, {})
        moved = None
        if "acked_bytes" in entry and "acked_bytes" in earlier:
            moved = sum(entry[name] - earlier[name] for name in ("acked_bytes", "received_bytes"))
        queues = {"before_" + name: earlier[name] for name in ("unsent_bytes", "unread_bytes") if name in earlier}
        told.append(dict(entry, moved_bytes=moved, **queues))
    told.sort(key=_is_quiet)
    return told[:CONNECTIONS]


def _is_quiet(entry: Dict[str, Any]) -> bool:
    """Whether a connection has nothing to tell but that it stands."""
    full = entry["timeouts"] or entry["unsent_bytes"] or entry["unread_bytes"]
    return entry["state"] in ("ESTABLISHED", "LISTEN") and not full and not entry["moved_bytes"]


# --- memory


def _swapping() -> Dict[str, int]:
    """Pages swapped in and out, and processes that the kernel killed for want of memory, since boot."""
    fields = dict(line.split(" ", 1) for line in (_readable("/proc/vmstat") or "").splitlines() if " " in line)
    return {name: int(fields[name]) for name in ("pswpin", "pswpout", "oom_kill") if fields.get(name, "").isdigit()}


def _pressure() -> Dict[str, str]:
    """The kernel's own words on what tasks have waited for in the last 10 s."""
    return {
        name: text.splitlines()[-1][:120]
        for name in ("memory", "io", "cpu")
        for text in [_readable("/proc/pressure/" + name) or ""]
        if text
    }


# --- what the job's libraries say of themselves


def _ras_reports(found: List[Dict[str, Any]], look: Dict[str, Any], interval_s: float) -> List[Dict[str, str]]:
    """Two answers of each RAS thread that a rank listens with on this host."""
    answers = []
    for address in sorted(_ras_addresses(found, look)):
        for number in range(2):
            if number:
                time.sleep(interval_s)
            try:
                answers.append({"address": "%s:%d" % address, "text": redact_text(_ask_ras(address))})
            except OSError as error:
                answers.append({"address": "%s:%d" % address, "error": error.strerror or str(error)})
    return answers


def _ras_addresses(found: List[Dict[str, Any]], look: Dict[str, Any]) -> Set[Tuple[str, int]]:
    addresses = set()
    own = _link("/proc/self/ns/net")
    for process in found:
        _, _, port = process["environment"].get("NCCL_RAS_ADDR", "").rpartition(":")
        wanted = int(port) if port.isdigit() else RAS_PORT
        for entry in look["connections"].get(process["pid"], {}).values():
            at, _, number = entry["local"].rpartition(":")
            if entry["state"] == "LISTEN" and int(number) == wanted and process["namespace"] in ("", own):
                addresses.add(("127.0.0.1" if at in ("0.0.0.0", "::") else at, wanted))
    return addresses


def _ask_ras(address: Tuple[str, int]) -> str:
    """The verbose report of NCCL's RAS service, as JSON where it knows that (2.28): a protocol that only reads."""
    end = time.monotonic() + RAS_LIMIT_S
    with socket.create_connection(address, 2.0) as asked:
        asked.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 4\nSET FORMAT json\nVERBOSE STATUS\n")
        answer = b""
        while len(answer) < RAS_BYTES and time.monotonic() < end:
            asked.settimeout(max(0.1, end - time.monotonic()))
            block = asked.recv(1 << 16)
            if not block:
                break
            answer += block
    return answer.decode("utf-8", "replace")


def _dumps(found: List[Dict[str, Any]]) -> Tuple[List[Dict[str, Any]], List[str]]:
    """The flight-recorder dumps that the ranks have written since they started, packed, and those left out."""
    dumps: List[Dict[str, Any]] = []
    problems: List[str] = []
    room = DUMPS_LIMIT
    for process in found:
        rank = process["environment"].get("RANK")
        if process["role"] != "rank" or not rank:
            continue
        name = _newest_dump(process, rank)
        if not name:
            continue
        shown = re.sub(r"^/proc/\d+/root", "", name)
        try:
            # Anybody may write to /tmp: no link is followed, and no FIFO waited for.
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
                data = stream.read(DUMP_LIMIT + 1)
            packed = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
            if len(data) > DUMP_LIMIT or len(packed) > room:
                raise OSError(
                    errno.EFBIG, "larger than %d MiB, or than what is left for this host" % (DUMP_LIMIT >> 20)
                )
            room -= len(packed)
            dumps.append({"rank": int(rank), "pid": process["pid"], "path": shown, "data": packed})
        except OSError as error:
            problems.append("%s: %s" % (shown, error.strerror or error))
    return dumps, problems


def _dump_prefixes(environment: Dict[str, str]) -> List[str]:
    """Where a rank's torch writes its dump, but for the rank at the end: as told, or by the defaults of all releases."""
    told = [environment[name] for name in _DUMP_PREFIXES if environment.get(name)]
    cache = environment.get("XDG_CACHE_HOME") or environment.get("HOME", "/root") + "/.cache"
    names = ("/tmp/nccl_trace_rank_", cache + "/torch/nccl_trace_rank_", cache + "/torch/comm_lib_trace_rank_")
    return told or list(names)


def _newest_dump(process: Dict[str, Any], rank: str) -> str:
    """The rank's newest dump: a file of its own user's that is not older than the process; empty if there is none."""
    started = time.time() - process["age_s"] - 1.0
    newest = (started, "")
    for prefix in process["dump_prefixes"]:
        for name in glob.glob(glob.escape(path("/proc/%d/root%s%s" % (process["pid"], prefix, rank))) + "*"):
            behind = os.path.basename(name)[len(os.path.basename(prefix)) :]
            if not re.fullmatch(re.escape(rank) + r"(\.\w{1,10})?", behind):
                continue
            try:
                known = os.lstat(name)
            except OSError:
                continue  # it has just gone
            if stat.S_ISREG(known.st_mode) and known.st_uid == process["uid"]:
                newest = max(newest, (known.st_mtime, name))
    return newest[1]
