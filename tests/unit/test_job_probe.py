"""The probe ``job`` on real little processes: found by their variables, read twice, and left as they were."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from nccl_doctor.agent import probing
from nccl_doctor.agent.job import connections, processes, readings, stacks, variables
from nccl_doctor.agent.probes import job as probe
from nccl_doctor.agent.probing import ProbeTrouble
from nccl_doctor.facts.job import Job, Process, Thread

JOB = str(os.getpid())  # MASTER_PORT, so that only this test's ranks are looked at
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a rank that runs this source; it says ``ready`` first. All are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(rank: int, source: str, *before: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "probe", "MASTER_PORT": JOB, **variables}
        words = [*before, sys.executable, "-c", f"print('ready', flush=True)\n{source}"]
        child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        return child

    yield run
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def look(**arguments: Any) -> tuple[Job, list[Process]]:
    """What the probe says, through JSON as over the wire, and this test's processes of it."""
    told = probe.job({"interval_s": 0.2, "stacks": False, **arguments})
    fact = msgspec.convert(json.loads(json.dumps(told)), Job)
    return fact, [item for item in fact.processes if item.environment.get("MASTER_PORT") == JOB]


def look_until(there: Callable[[list[Process]], object], **arguments: Any) -> tuple[Job, list[Process]]:
    """The same, again until what was started has come to its place."""
    end = time.monotonic() + 60
    while True:
        fact, found = look(**arguments)
        if there(found) or time.monotonic() > end:
            return fact, found


def main_thread(process: Process) -> Thread | None:
    """Its main thread at the second look."""
    reading = process.readings[-1]
    return reading.main if reading else None


def waits_in(process: Process) -> str:
    """The kernel function of its main thread at the second look."""
    main = main_thread(process)
    return main.waits_in if main else ""


def sleeps(process: Process) -> bool:
    """Whether its main thread slept at both looks: what it did before that moves nothing between them."""
    return all(reading and reading.main and "nanosleep" in reading.main.waits_in for reading in process.readings)


def test_a_rank_its_wrapper_and_its_child_are_told_apart_and_no_other_variable_leaves(start: Start) -> None:
    fork = "import os, time\nif not os.fork():\n    time.sleep(60)\ntime.sleep(60)"
    shell = start(0, fork, "sh", "-c", '"$@"; :', "sh", AWS_SECRET_ACCESS_KEY="hunter2", LOCAL_RANK="0")
    fact, found = look_until(lambda found: len(found) == 3 and "nanosleep" in waits_in(found[1]))
    assert [item.role for item in found] == ["wrapper", "rank", "child"]
    wrapper, rank, child = found
    assert wrapper.pid == shell.pid and child.rank_pid == rank.pid == child.parent
    assert set(rank.environment) == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"}
    assert "hunter2" not in str(fact)
    reading = rank.readings[-1]
    assert reading is not None and reading.main is not None and reading.state == "S"
    assert "nanosleep" in reading.main.waits_in and rank.script == "-c" and rank.age_s < 60


def test_a_launcher_with_a_schedulers_number_is_no_rank(start: Start) -> None:
    """As accelerate under srun: it has SLURM_PROCID, and the ranks that it starts have RANK as well."""
    inner = "import os, subprocess, sys\n"
    inner += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'], env={**os.environ, 'RANK': '1'})"
    start(0, inner, "env", "-u", "RANK", "SLURM_PROCID=0", "SLURM_STEP_ID=0")
    _, found = look_until(lambda found: [item.environment.get("RANK") for item in found] == [None, "1"])
    assert [(item.role, item.environment.get("RANK")) for item in found] == [("wrapper", None), ("rank", "1")]


@pytest.mark.parametrize("step", ["", "SLURM_STEP_ID=4294967291"])
def test_what_a_batch_script_starts_by_itself_is_no_rank(start: Start, step: str) -> None:
    """As preflight in a batch script, which waits for the job: it has SLURM_PROCID, and is no task of a step."""
    bare = [word for word in ("env", "-u", "RANK", "SLURM_PROCID=0", "SLURM_NTASKS=4", step) if word]
    start(0, "import time; time.sleep(60)", *bare)
    start(1, "import time; time.sleep(60)")
    _, (rank,) = look_until(lambda found: found and all(map(sleeps, found)))
    assert rank.environment["RANK"] == "1"


def test_a_program_that_sets_its_rank_itself_is_found(start: Start) -> None:
    """As the processes of mp.spawn, Ray and notebooks: /proc/PID/environ keeps what they were started with."""
    source = "import os, time; os.environ.update(RANK='7', MASTER_PORT='{0}', SECRET='hunter2'); del os.environ['LOCAL_RANK']"
    bare = ("env", "-u", "RANK", "-u", "MASTER_PORT")
    start(0, source.format(JOB) + "; time.sleep(60)", *bare, LOCAL_RANK="5", SET_AT_START="1")
    fact, (rank,) = look_until(lambda found: found and sleeps(found[0]))
    assert rank.role == "rank" and "hunter2" not in str(fact)
    assert rank.environment == {"RANK": "7", "WORLD_SIZE": "2", "MASTER_ADDR": "probe", "MASTER_PORT": JOB}


def test_ranks_of_lightning_are_told_apart_by_their_place(start: Start) -> None:
    """The first starts the others, and sets its own variables after its start; none has RANK."""
    first = "import os, subprocess, sys; os.environ.update(NODE_RANK='1', LOCAL_RANK='0')\nown = os.environ.copy()\n"
    source = "own['LOCAL_RANK'] = '1'\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'], env=own)"
    start(0, first + source, "env", "-u", "RANK")
    # Before it runs its program, the second still has the variables of the first.
    _, found = look_until(lambda found: [item.environment["LOCAL_RANK"] for item in found] == ["0", "1"])
    assert [(item.role, item.placed, item.environment["LOCAL_RANK"]) for item in found] == [
        ("rank", True, "0"),
        ("rank", True, "1"),
    ]


def test_numbers_of_spawned_processes_are_read_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 has not come to its number yet; of the other parent 20 some have ended: they cannot be counted."""
    told = {10: {"nprocs": "3"}, 11: {"i": "0"}, 13: {"i": "2"}, 20: {"nprocs": "3"}, 21: {"i": "1"}}
    monkeypatch.setattr(stacks, "_spawn_locals", lambda _, pid: told.get(pid, {}))
    found = stacks.spawned("py-spy", {11: 10, 12: 10, 13: 10, 21: 20, 22: 20, 31: 30})
    assert {pid: numbers["RANK"] for pid, numbers in found.items()} == {11: "0", 12: "1", 13: "2", 21: "1"}
    assert all(numbers["WORLD_SIZE"] == "3" for numbers in found.values())
    assert stacks.spawned("", {11: 10}) == {}


def test_states_are_read_and_left_as_they_are(start: Start) -> None:
    stopped, busy = start(0, "import time; time.sleep(60)"), start(1, "while True: pass")
    os.kill(stopped.pid, signal.SIGSTOP)

    def there(found: list[Process]) -> bool:
        still, at_work = (next(item for item in found if item.pid == child.pid) for child in (stopped, busy))
        spent = [reading.cpu_s for reading in at_work.readings if reading]
        return [reading and reading.state for reading in still.readings] == ["T", "T"] and spent[0] < spent[-1]

    _, found = look_until(there)
    assert there(found)
    assert next(item for item in found if item.pid == busy.pid).readings[-1].state == "R"  # type: ignore[union-attr]
    assert Path(f"/proc/{stopped.pid}/stat").read_text().split(") ")[1][0] == "T"


def test_a_write_that_waits_names_its_file(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "checkpoint"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    start(0, f"import os\nf = os.open({str(fifo)!r}, os.O_WRONLY)\nwhile True: os.write(f, bytes(1 << 16))")
    (rank,) = look_until(lambda found: "pipe" in waits_in(found[0]))[1]
    os.close(reader)
    main = rank.readings[-1].main if rank.readings[-1] else None
    assert main and (main.call, main.file) == ("write", str(fifo)) and "pipe" in main.waits_in


def test_who_holds_a_file_lock_is_read(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        start(0, f"import fcntl\nf = open({str(file)!r})\nfcntl.flock(f, fcntl.LOCK_EX)")
        (rank,) = look_until(lambda found: "lock" in waits_in(found[0]))[1]
    main = rank.readings[-1].main if rank.readings[-1] else None
    assert main and (main.call, main.file, main.holder) == ("flock", str(file), os.getpid())


SPAWN = """
import multiprocessing, sys, time

def _wrap(i):
    work()

def work():
    secret = "hunter2"
    time.sleep(60)

def start_processes(nprocs):
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_wrap, args=(i,)) for i in range(nprocs)]
    for process in started:
        process.start()
    for process in started:
        process.join()
"""


def test_the_processes_of_spawn_bear_the_numbers_of_its_frames(start: Start, tmp_path: Path) -> None:
    """As of torch.multiprocessing.spawn, by a module that stands in for it: what counts is its frames."""
    if not stacks.find():
        pytest.skip("no py-spy (pip install py-spy)")
    package = tmp_path / "torch" / "multiprocessing"
    package.mkdir(parents=True)
    for file, text in (("__init__.py", ""), ("spawn.py", SPAWN)):
        (package / file).write_text(text)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text(
        "from torch.multiprocessing import spawn\nif __name__ == '__main__':\n    spawn.start_processes(2)"
    )
    bare = ("env", "-u", "RANK", "-u", "WORLD_SIZE")
    source = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_module('train', run_name='__main__', alter_sys=True)"
    start(0, source, *bare, PYTHONPATH=str(tmp_path))
    fact, found = look_until(lambda found: len(found) == 2 and all(map(sleeps, found)), stacks=True)
    assert [(item.role, item.spawned, item.environment["RANK"], item.environment["WORLD_SIZE"]) for item in found] == [
        ("rank", True, "0", "2"), ("rank", True, "1", "2"),
    ]  # fmt: skip
    assert "hunter2" not in str(fact)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            "/usr/bin/torchrun --nnodes=1:4 --rdzv_endpoint a:29400 x.py --nnodes 9",
            {"nnodes": "1:4", "rdzv-endpoint": "a:29400"},
        ),
        ("-m torch.distributed.run --nproc-per-node gpu x.py", {"nnodes": "2", "nproc-per-node": "gpu"}),
        ("x.py --nnodes 2", None),
    ],
)
def test_what_a_torchrun_was_told_is_read_up_to_the_users_program(words: str, options: dict[str, str] | None) -> None:
    variables = {"PET_NNODES": "2", "PET_SECRET": "hunter2"}  # Kubeflow's way
    assert processes._torchrun_options(["python", *words.split()], variables) == options


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter another network namespace")
def test_connections_of_a_containers_network_tell_bytes_and_times() -> None:
    source = """
import socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 7), backlog=1)
client = socket.create_connection(("127.0.0.1", 7))
client.sendall(b"12345")
print("ready", flush=True)
input()
"""
    words = ["unshare", "--net", sys.executable, "-c", source]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        if child.stdout.readline() != b"ready\n":
            pytest.skip("no network namespace can be made here")
        own = os.readlink("/proc/thread-self/ns/net")
        there = [entry for entry in connections.of_namespace(child.pid).values() if entry["peer"] == "127.0.0.1:7"]
        assert [entry["acked_bytes"] for entry in there] in ([5], [6]) and os.readlink(
            "/proc/thread-self/ns/net"
        ) == own
        child.stdin.close()


def test_connections_tell_what_moved_and_for_how_long_nothing_has(start: Start) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    source = f"import socket, time\ns = socket.create_connection(('127.0.0.1', {port}))\ns.sendall(bytes(5000))"
    rank = start(0, source + "\ntime.sleep(60)")
    other, _ = server.accept()
    with server, other:
        (connection,) = look_until(lambda found: sleeps(found[0]))[1][0].connections
        assert connection.peer == f"127.0.0.1:{port}" and connection.state == "ESTABLISHED"
        assert (connection.acked_bytes or 0) >= 5000 and connection.moved_bytes == 0
        assert (connection.sent_ago_ms or 0) >= 150 and connection.timeouts == 0
        with_proc = {entry["peer"]: entry for entry in connections.of_process(rank.pid).values()}
        assert with_proc[connection.peer]["state"] == "ESTABLISHED"  # where sock_diag does not answer
        mine = next(entry for entry in connections.own_namespace().values() if entry["local"] == connection.peer
                    and entry["state"] == "ESTABLISHED")  # fmt: skip
        assert mine["unread_bytes"] == 5000


def test_the_ports_on_which_somebody_listens_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        told = look()[0].listening
        assert told is not None and open_port.getsockname()[1] in told and closed.getsockname()[1] not in told

    def refuses(*_: object) -> Iterator[bytes]:
        raise OSError("sock_diag")

    monkeypatch.setattr(connections, "_dump", refuses)
    assert connections.listening() is None  # not known, and not none


def test_stacks_are_taken_without_a_stop(start: Start) -> None:
    if not stacks.find():
        pytest.skip("no py-spy (pip install py-spy)")
    start(0, "import time\ndef nap():\n    time.sleep(60)\nnap()")
    (rank,) = look_until(lambda found: sleeps(found[0]), stacks=True)[1]
    assert all(stack and stack.outcome == "ok" for stack in rank.stacks)
    assert rank.stacks[-1] and [frame.function for frame in rank.stacks[-1].threads[0].frames] == ["nap", "<module>"]


def test_a_host_without_py_spy_asks_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find", lambda: "")
    with pytest.raises(ProbeTrouble) as asked:
        look(stacks=True, machine=stacks.machine())
    assert asked.value.outcome == "tool-missing"
    assert "pip install py-spy" in stacks.program({"machine": "another"})[1]


RAS = """
import os, socket
server = socket.create_server(("127.0.0.1", {port}))
while True:
    asked, _ = server.accept()
    text = b""
    while not text.endswith(b"STATUS\\n"):
        text += asked.recv(100)
    known = [b"CLIENT PROTOCOL 2", b"TIMEOUT 4", b"SET FORMAT json", b"VERBOSE STATUS"]
    answer = {answer!r} if text.splitlines() == known else b"what?"
    asked.sendall(b"SERVER PROTOCOL 2\\nOK\\nOK\\n" + answer)
    asked.close()
"""


def test_the_ras_service_of_a_rank_is_asked_twice_and_its_dump_is_read(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prefix = str(tmp_path / "trace_rank_")
    (tmp_path / "trace_rank_1").write_bytes(b"of an earlier job")
    os.utime(tmp_path / "trace_rank_1", (1.0, 1.0))
    variables = {"NCCL_RAS_ADDR": f"localhost:{port}", "TORCH_FR_DUMP_TEMP_FILE": prefix}
    start(0, RAS.format(port=port, answer=b'{"nccl_version": "2.29.2"}\n'), **variables)
    start(1, "import time; time.sleep(600)", **variables)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as wait:
            wait.sendall(b"STATUS\n")
            break
    (tmp_path / "trace_rank_0").write_bytes(b"a dump")
    fact, _ = look()
    answers = [answer for answer in fact.ras if answer.address.endswith(f":{port}")]  # others may run beside this test
    assert [answer.text.splitlines()[-1] for answer in answers] == ['{"nccl_version": "2.29.2"}'] * 2
    dumps = [dump for dump in fact.dumps if dump.path.startswith(prefix)]
    assert [(dump.rank, dump.path) for dump in dumps] == [(0, prefix + "0")]


def test_a_dump_that_lies_where_the_rank_runs_is_read(start: Start, tmp_path: Path) -> None:
    start(4, f"import os, time; os.chdir({str(tmp_path)!r}); time.sleep(60)", TORCH_FR_DUMP_TEMP_FILE="trace_")
    (tmp_path / "trace_4").write_bytes(b"a dump")
    fact, ranks = look_until(lambda found: all(map(sleeps, found)))
    assert [(dump.rank, dump.path) for dump in fact.dumps if dump.pid == ranks[0].pid] == [(4, "trace_4")]


def test_a_broken_library_of_anybodys_process_hides_no_other(tmp_path: Path) -> None:
    """Its section says that its names lie in one that is not there, or that it is larger than all memory."""
    head = bytearray(64)
    head[:6], head[40:48], head[58:62] = b"\x7fELF\x02\x01", (64).to_bytes(8, "little"), b"\x40\0\x01\0"
    section = bytearray(64)
    section[4], section[40] = variables._DYNSYM, 9
    (tmp_path / "libc.so.6").write_bytes(head + section)
    with pytest.raises(IndexError):
        variables._symbol(str(tmp_path / "libc.so.6"))
    with mock.patch.object(variables, "_list_at", lambda pid: variables._symbol(str(tmp_path / "libc.so.6"))):
        assert variables.now(os.getpid()) is None
    section[32:40], section[40] = (1 << 50).to_bytes(8, "little"), 0
    (tmp_path / "libc.so.6").write_bytes(head + section)
    with pytest.raises((ValueError, struct.error)):
        variables._symbol(str(tmp_path / "libc.so.6"))


@pytest.mark.parametrize("kind", ["link", "fifo", "old"])
def test_only_a_file_that_the_rank_can_have_written_is_taken_for_its_dump(
    start: Start, tmp_path: Path, kind: str
) -> None:
    """Anybody may write to /tmp, where torch's dumps lie by default."""
    place = tmp_path / "trace_3"
    if kind == "link":
        secret = tmp_path / "secret"
        secret.write_text("not a dump")
        place.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.write_bytes(b"of an earlier job")
        os.utime(place, (1.0, 1.0))
    start(3, "import time; time.sleep(60)", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_")
    fact, ranks = look()
    assert len(ranks) == 1
    assert not [dump for dump in fact.dumps if dump.pid == ranks[0].pid]


def test_the_one_socket_that_a_rank_polls_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        start(0, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=60).recv(1)")
        told = f"-> 127.0.0.1:{port}"
        _, (rank,) = look_until(lambda found: (main := main_thread(found[0])) and main.file.endswith(told))
        main = main_thread(rank)
        assert main and main.call == "poll" and main.file.startswith("TCP 127.0.0.1:") and main.file.endswith(told)


def test_of_many_threads_those_that_are_stuck_in_the_kernel_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    for thread, state in ((7, "S"), *((number, "R") for number in range(10, 20)), (30, "D"), (31, "S")):
        place = tmp_path / "proc" / "7" / "task" / str(thread)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{thread} (python) {state} " + "1 " * 40)
    (tmp_path / "proc" / "7" / "stat").write_text("7 (python) S " + "1 " * 40)
    told = readings.reading(7)
    assert told is not None and told["others"][0]["id"] == 30 and len(told["others"]) == readings.THREADS_TOLD


@pytest.mark.parametrize(("count", "told"), [(1, {"call": "poll", "file": "pipe:[5]", "file_system": ""}), (2, {})])
def test_of_several_files_that_are_polled_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, told: dict[str, str]
) -> None:
    place = tmp_path / "proc" / "7"
    (place / "fd").mkdir(parents=True)
    (place / "fd" / "3").symlink_to("pipe:[5]")
    (place / "mem").write_bytes(b"\0" * 16 + struct.pack("=ihh", 3, 1, 0))
    (place / "syscall").write_text(f"7 0x10 0x{count:x} 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n")
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    monkeypatch.setattr(stacks, "machine", lambda: "x86_64")
    assert readings._call(7, "") == told


def test_a_rank_whose_core_is_being_dumped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "proc" / "7"
    place.mkdir(parents=True)
    (place / "stat").write_text("7 (python) R " + "1 " * 40)
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    for text, dumps in (("CoreDumping:\t1\n", True), ("CoreDumping:\t0\n", False), ("", False)):
        (place / "status").write_text("State:\tR (running)\n" + text)
        told = readings.reading(7)
        assert told is not None and told["dumps_core"] is dumps


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
def test_what_another_user_may_not_read_is_counted_and_not_guessed(start: Start) -> None:
    rank = start(0, "import time; time.sleep(60)")
    code = "import json; from nccl_doctor.agent.probes import job; print(json.dumps(job.job({'stacks': False})))"
    project = str(Path(probe.__file__).resolve().parents[3])
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-B", "-c", code]
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python that another user may start")
    done = subprocess.run(words, capture_output=True, env={"PYTHONPATH": project, "PATH": "/usr/bin:/bin"}, check=False)
    if b"ModuleNotFoundError" in done.stderr:
        pytest.skip("another user may not read this checkout")
    told = msgspec.convert(json.loads(done.stdout), Job)
    assert told.refused.count >= 1 and rank.pid not in [item.pid for item in told.processes]


def test_a_rank_that_ends_under_py_spy_has_ended_and_another_failure_is_quoted(tmp_path: Path) -> None:
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\necho 'Error: Failed to get process executable name.' >&2\nexit 1\n")
    py_spy.chmod(0o755)
    gone = subprocess.Popen(["true"])
    gone.wait()
    told = stacks.take(str(py_spy), [gone.pid, os.getpid()])
    assert (told[gone.pid]["outcome"], told[os.getpid()]["outcome"]) == ("ended", "failed")
    assert str(gone.pid) in told[gone.pid]["detail"] and "executable name" in told[os.getpid()]["detail"]


_TORCH = "/opt/env/lib/python3.11/site-packages/torch/distributed/"
_GROUP = "<torch._C._distributed_c10d.ProcessGroup at 0x7f>"


def _frame(name: str, file: str, **known: str | None) -> dict[str, Any]:
    told = [{"name": key, "addr": 1, "arg": False, "repr": value} for key, value in known.items()]
    return {"name": name, "filename": file, "module": None, "short_filename": None, "line": 7, "locals": told}


def _py_spy(place: Path, frames: list[dict[str, Any]]) -> str:
    """One that tells these frames of any process, and can read no variables where there are none."""
    told = [
        {"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": False, "frames": frames}
    ]
    (place / "answer").write_text(json.dumps(told))
    check = "" if all("locals" in frame for frame in frames) else "case $* in *--locals*) exit 1;; esac\n"
    (place / "py-spy").write_text(f"#!/bin/sh\n{check}exec cat {place}/answer\n")
    (place / "py-spy").chmod(0o755)
    return str(place / "py-spy")


@pytest.mark.parametrize(
    ("own", "given", "peer", "default_group"),
    [
        ({"src": "2", "group": "None"}, {"args": "(<Tensor at 0x7f>, 2)", "kwargs": "{}"}, 2, True),
        ({"dst": "0", "group": _GROUP}, {"args": "(<Tensor at 0x7f>, 0)", "kwargs": '{"group": None}'}, 0, True),
        ({"src": "None", "group_src": "3"}, {"args": "(<Tensor at 0x7f>)", "kwargs": '{"group_src": 3}'}, 3, True),
        ({"group_src": "1", "group": _GROUP}, {"args": "()", "kwargs": '{"group": ' + _GROUP + "}"}, None, False),
        ({"src": "5"}, {"args": f"(<Tensor at 0x7f>, 5, {_GROUP})", "kwargs": "{}"}, 5, False),
        ({}, {"args": "([<Tensor at 0x7f>, <Tensor at 0x7f>], ...)", "kwargs": "{}"}, None, False),
        ({}, {"args": "([0, 1])", "kwargs": '{"use_local_synchronization": True}'}, None, False),
        ({}, {}, None, False),
        ({"src": None}, {"args": None, "kwargs": None}, None, False),
    ],
    ids=[
        "source",
        "destination",
        "group's source",
        "group's rank",
        "group",
        "cut",
        "own members only",
        "not there",
        "not told",
    ],
)
def test_whom_a_call_of_torch_names_is_read_and_nothing_else_of_its_variables(
    tmp_path: Path, own: dict[str, str | None], given: dict[str, str | None], peer: int | None, default_group: bool
) -> None:
    frames = [
        _frame("recv", _TORCH + "distributed_c10d.py", **own),
        _frame("wrapper", _TORCH + "c10d_logger.py", **given),
        _frame("load", "/job/train.py", src="9", token='"hunter2"'),
    ]
    told = stacks.take(_py_spy(tmp_path, frames), [os.getpid()])
    (thread,) = told[os.getpid()]["threads"]
    inner, *others = thread["frames"]
    assert (inner["peer"], inner["default_group"]) == (peer, default_group) and "hunter2" not in str(told)
    assert all(set(frame) == {"function", "file", "line"} for frame in others)


def test_of_many_threads_those_of_the_users_program_are_kept(tmp_path: Path) -> None:
    frames = [_frame("run", "/usr/lib/python3.11/threading.py")]
    program = _py_spy(tmp_path, frames)
    (thread,) = json.loads((tmp_path / "answer").read_text())
    service = [
        {**thread, "os_thread_id": number, "thread_name": f"service-{number}", "active": True} for number in range(6)
    ]
    own = {**thread, "os_thread_id": 9, "thread_name": "train", "frames": [_frame("train", "/job/train.py"), *frames]}
    main = {**thread, "os_thread_id": os.getpid()}
    (tmp_path / "answer").write_text(json.dumps([*service, own, main]))
    told = stacks.take(program, [os.getpid()])[os.getpid()]["threads"]
    assert [item["name"] for item in told[:2]] == ["MainThread", "train"] and len(told) == stacks.THREADS


def test_where_variables_cannot_be_read_the_stack_is_taken_without(tmp_path: Path) -> None:
    frames = [{"name": "recv", "filename": _TORCH + "distributed_c10d.py", "line": 7}]
    told = stacks.take(_py_spy(tmp_path, frames), [os.getpid()])[os.getpid()]
    assert told["outcome"] == "ok" and told["threads"][0]["frames"][0]["peer"] is None


def test_a_py_spy_that_hangs_takes_no_other_fact_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beneath ranks on a dead file system: twice sixteen of them would take longer than the probe may."""
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\nexec sleep 60\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(stacks, "LOOK_S", 0.5)
    monkeypatch.setattr(stacks, "AT_ONCE", 1)
    told = stacks.take(str(py_spy), [1, os.getpid()])
    assert [item["outcome"] for item in told.values()] == ["timed-out"] * 2
    assert "its turn did not come" in told[os.getpid()]["detail"]
