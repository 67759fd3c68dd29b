"""Lines that accuse by their words, and in this case say nothing, or less: something else accounts for them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.hang import CRASHED, GAVE_UP
from nccl_doctor.explain.lines import came_after, just_below, later, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.processes import of_same_process
from nccl_doctor.explain.signatures.system import SHELL_KILLED

_CANCELLED = re.compile(r"CANCELLED AT|Force Terminated")
_TASK_FAILED = re.compile(r"Terminating StepId=|tasks? [\d,-]+: (?:Exited with exit code|Killed|Seg|Abort|Bus|Out Of)")


_TASK_EXITED = re.compile(r"srun: error: .*tasks? [\d,-]+: (?:Exited with exit code|Seg|Abort|Bus)")


def _of_a_debugger(case: Case, hit: Hit) -> bool:
    """Whether a native frame is one of processes that stand still, and not of a crash."""
    return not case.has(*CRASHED) and any(stack.signature == "stack-debugger" for stack in case.hang.stacks)


def _follows_failed_task(case: Case, hit: Hit) -> bool:
    """Whether Slurm cancelled the step after a task had failed, waited in vain or could not start: it is no cause then."""
    if not _CANCELLED.search(hit.text) or "DUE TO" in hit.text:
        return "DUE TO TASK FAILURE" in hit.text
    failed = [item for item in case.hits("mpi-abort", "sigkill") if _TASK_FAILED.search(item.text)]
    failed += case.hits(
        "watchdog-timeout", "watchdog-down", "monitored-barrier", *(CRASHED if "STEP" in hit.text else ())
    )
    failed += case.hits("slurm-pmix-connect", "slurm-wireup", "slurm-cgroup")
    failed += [item for item in case.hits("step-not-launched", "credential-refused") if "srun" in item.text]
    return any(later(hit, item) for item in failed)


_DEAD_WORKER = re.compile(r"Worker PID: (\d+)")
_KILLED_PID = re.compile(r"\b(?:pid: |PID |process )(\d+)\b")


def _ended_by_others(case: Case, hit: Hit) -> bool:
    """Whether this is only how a program ends that had given up: a watchdog's SIGKILL, of which the shell tells, or Slurm's
    after another task had failed, a launcher's of a process that it had told to stop, the stop of a launcher after another
    one had seen its rank fail, the trap of a kernel that has waited in vain for other ranks, a crash after XLA had aborted
    its communicators, a fabric manager that found no switch to manage, a worker of Ray whose own watchdog ended it, or a process
    that somebody says he killed."""
    if hit.signature == "sigkill" and (told := case.hits("sends-sigkill")):
        seen = case.hits("sigkill") if place(hit) in set(map(place, told)) else []
        if of_same_process(hit, [*told, *seen]):
            return True
    if hit.signature == "sigkill" and (pid := _KILLED_PID.search(hit.text)):
        before = [told for told in case.hits("sigterm-workers") if f" process {pid[1]} " in told.text]
    elif hit.signature in ("sigkill", "shell-killed") and SHELL_KILLED.search(hit.text):
        before = case.hits(*GAVE_UP)
        if "task" in hit.text and any(_behind(hit, step) for step in case.hits("step-cancelled")):
            before += [one for one in case.hits("mpi-abort") if _TASK_EXITED.search(one.text)]
    elif hit.signature == "signal-exception":
        exits = [] if case.course.overcome("torchrun-exit") else case.hits("torchrun-exit")
        before = [*(one for one in exits if one.groups.get("code") != "-15"), *case.hits(*GAVE_UP)]
        hit = next(
            told for told in case.hits("signal-exception") if told.file == hit.file
        )  # with a time, the traceback has none
    elif "unspecified launch failure" in hit.text:
        before = case.hits("deepep-timeout", "symmetric-signal-timeout")
    elif hit.signature in CRASHED:
        before = case.hits("xla-communicator")
    elif hit.signature == "fabric-manager":
        before = case.hits("no-switch-to-manage")
    elif hit.signature == "ray-vanished":
        before = case.hits("watchdog-timeout", "watchdog-down")
        dead = _DEAD_WORKER.search(hit.text)
        if dead and any(one.pid == dead[1] for one in before):
            return True  # Ray passes a worker's last words on when it may have told of its end already
    else:
        return False
    return any(_behind(hit, one) for one in before)


_ONE_DEVICE = re.compile(r"Unable to open device \w|ibv_open_device failed")


def _passed_over(case: Case, hit: Hit) -> bool:
    """Whether NCCL could not open an adapter and goes on without: a container is given some of its host's.

    Only where all of the job's processes then use the same: those that use more would wait for a peer on the others.
    """
    if not _ONE_DEVICE.search(hit.text):
        return False
    return len({line.groups["devices"] for line in case.hits("net-ib-using")}) == 1


_PORT = re.compile(r"\b(?:link|device|CA|hca_id:?) '?([a-z]\w+)")  # rdma link, ibstatus and the like


def _beside_the_job(case: Case, hit: Hit) -> bool:
    """Whether a listing tells of a port that no process of the job uses: NCCL names those it uses."""
    used = " ".join(line.groups["devices"] for line in case.hits("net-ib-using"))
    named = _PORT.findall(hit.text) if used and hit.signature == "port-state-down" else []
    return bool(named) and not any(f"{device}:" in used for device in named)


_SAME_PORT = 2  # lines from a port's state to its physical state
_OFF = "disabled"


def _switched_off(case: Case, hit: Hit) -> bool:
    """Whether a listing tells of a port that is switched off (Disabled; one without its partner is polling), beside active
    ones: of adapters with two ports one is often not used."""
    if hit.signature != "port-state-down" or all(active.file != hit.file for active in case.hits("port-active")):
        return False
    text = hit.text.lower()
    below = () if "phys" in text else case.hits(hit.signature)  # its physical state is told below
    return _OFF in text or any(_OFF in one.text.lower() and just_below(one, hit, _SAME_PORT) for one in below)


def _up_at_the_start(case: Case, down: Hit) -> bool:
    """Whether a link that went down was up again before NCCL chose its adapters: that job never saw it down."""
    if down.signature != "kernel-link-down":
        return False
    downs = [last for last in case.lasts("kernel-link-down") if last.host == down.host]
    ups = [up for up in case.hits("kernel-link-up") if up.host == down.host and all(_behind(up, one) for one in downs)]
    return any(_behind(using, up) for up in ups for using in case.hits("net-ib-using"))


def _behind(one: Hit, other: Hit) -> bool:
    """Whether ``one`` came after ``other``. Of one file the order tells: the clocks of what passes lines on differ."""
    return later(one, other) or came_after(one, other) is True


_PORT_EVENT = re.compile(r"NET/IB : (?:\S+:\d+ )?(?=Got )")  # mlx5_5:1; older releases name no port
_FLAP = 60.0  # seconds
_NO_QP = ("modify-qp", "create-qp")
# What a job says that lost its connections with the port.
_LOST = ("ib-retry", "ib-remote-error", "ib-no-way-left", "adapter-failed", "ib-local-protection")


def _came_back(case: Case, hit: Hit) -> bool:
    """Whether a port that failed was active again within a minute, or before two more steps, as did all that failed, and no
    connection is told to have failed with it. Of lines alike one is kept, and the last."""
    if hit.signature != "ib-port-error" or case.has(*_LOST):
        return False
    backs = [*case.hits("ib-port-back"), *case.lasts("ib-port-back")]
    each_came_back = case.count("ib-port-error") <= case.count("ib-port-back")
    return each_came_back and all(
        any(_soon_active(case, one, back) for back in backs) for one in (hit, *case.lasts("ib-port-error"))
    )


_EVENT = re.compile(r"event type \(|async (?:error )?event|GID table change")


def _only_an_event(case: Case, hit: Hit) -> bool:
    """Whether an adapter told that its table of GIDs changed, and no connection is told to have failed: those that stand keep theirs."""
    return hit.signature == "roce-gid-missing" and _EVENT.search(hit.text) is not None and not case.has(*_LOST, *_NO_QP)


def _soon_active(case: Case, failed: Hit, back: Hit) -> bool:
    """Whether this line tells of the same port within a minute after; without times, below it, and steps were made afterwards."""
    port = _PORT_EVENT.search(failed.text)
    if port is None or port[0] not in back.text or (failed.host, failed.pid) != (back.host, back.pid):
        return False
    if failed.seconds is None or back.seconds is None:
        return later(back, failed) and case.course.stepped_after(back)
    return 0 <= back.seconds - failed.seconds <= _FLAP


_HELD = re.compile(r"\bProcess \d+ has \d.{0,20} memory in use")


def _of_an_attempt_before(case: Case, hit: Hit) -> bool:
    """Whether a port or a GPU's memory was taken when the workers had been started again and had done nothing yet: those of the
    attempt before still hold it."""
    held = hit.signature == "port-in-use" or _HELD.search(hit.text) is not None
    begins = [one for one in case.hits("attempt-begins") if _behind(hit, one)] if held else []
    return any(all(not (later(hit, step) and later(step, one)) for step in case.hits("progress")) for one in begins)


_NO_STORE = frozenset(("master-unreachable", "master-timeout", "master-refused", "rdzv-connection"))


def _store_is_gone(case: Case, hit: Hit) -> bool:
    """Whether a rank finds no store after others had given up waiting: it went with them."""
    return hit.signature in _NO_STORE and any(
        _behind(hit, one) for one in case.hits("watchdog-timeout", "watchdog-down")
    )


def _complete_after(case: Case, hit: Hit) -> bool:
    """Whether all ranks came after this line: those that are early count the others while they wait."""
    return "Waiting in" in hit.text and any(_behind(done, hit) for done in case.lasts("barrier-completed"))


_AGAIN = re.compile(r"\bretry(?:ing)?\b(?! count)|trying again", re.IGNORECASE)
_WITHOUT = re.compile(r"\bfall(?:ing|s)? back\b|\bskipping\b|\bignoring\b|\bcontinuing\b", re.IGNORECASE)


def _went_another_way(case: Case, hit: Hit) -> bool:
    """Whether the line itself says that its process goes on, and it did: it spoke on, or, where it tries again, came to work."""
    if _AGAIN.search(hit.text):
        return any(later(last, hit) for name in ("nccl-init-complete", "progress") for last in case.lasts(name))
    spoke = case.summary.last_of_rank.get(hit.rank, hit) if hit.rank is not None else hit
    return _WITHOUT.search(hit.text) is not None and later(spoke, hit)


_POD = re.compile(r"(?<!\[)\bpod/([a-z0-9.-]+)")  # not kubectl's prefix of who speaks
_MEMBER = re.compile(r"-(?:[a-z0-9]*\d[a-z0-9]*|worker|master|launcher)$")  # a pod's number, or its part in the job
_EVENTS = ("kubelet-stops", "probe-failed", "resources-missing", "ended-with-error")


def _of_another_job(case: Case, hit: Hit) -> bool:
    """Whether Kubernetes tells of a pod that is called otherwise than those of the job, which speak here and are listed as well."""
    own = {_MEMBER.sub("", host) for host in case.summary.hosts}
    families = [_MEMBER.sub("", pod) for one in (hit, *case.hits(*_EVENTS)) for pod in _POD.findall(one.text)]
    return _POD.search(hit.text) is not None and families[0] not in own and not own.isdisjoint(families)


_IO_ERROR = re.compile(r"\[Errno 5\]|Input/output error")


def _the_disk_failed(case: Case, hit: Hit) -> bool:
    """Whether the file that could not be written to its end lies on storage that failed, as another line of its rank says."""
    if hit.signature != "zip-writer-cut-off":
        return False
    raised = [item.hit for item in case.summary.tracebacks if _IO_ERROR.search(f"{item.type}: {item.message}")]
    told = [one for one in case.hits("error-line") if _IO_ERROR.search(one.text)]
    return any(one.rank == hit.rank for one in (*raised, *told, *case.hits("lustre-unanswered")))


_STOPPING = re.compile(r"\bpod/([a-z0-9.-]+)\s+Stopping container")


def _pod_replaced(case: Case, hit: Hit) -> bool:
    """Whether an event tells that a pod's container was stopped, and a later one that the pod's next container ended by itself, as
    that of others does: why they end is another matter."""
    pod = _STOPPING.search(hit.text)
    ended = [later_one for later_one in case.hits("ended-with-error") if _behind(later_one, hit)] if pod else []
    return pod is not None and any(f"pod/{pod[1]} " in f"{one.text} " and "ack-off" in one.text for one in ended)


def _of_one_host(case: Case, hit: Hit) -> bool:
    """Whether a file of another rank is missed in a job of one host: its ranks share every directory, and something removed it."""
    return hit.signature == "part-of-another-rank" and case.nodes == 1


def _started_otherwise(case: Case, hit: Hit) -> bool:
    """Whether steps follow a program's refusal of its arguments: it was started again with others."""
    return hit.signature == "local-rank-argument" and any(later(step, hit) for step in case.lasts("progress"))


def _began_all_the_same(case: Case, hit: Hit) -> bool:
    """Whether the ranks of that host began after a script missed a command: it was not theirs."""
    if hit.signature != "shell-missing" or hit.rank is not None or "not found" not in hit.text:
        return False
    begun = [one for name in ("nccl-version", "bootstrap-using", "progress") for one in case.lasts(name)]
    # Not only those of another host, on which no such script ran; Slurm's batch script runs before the ranks of all hosts.
    if 2 * len(case.summary.ranks) > max(case.world, 2) or "/slurm_script: line " in hit.text:
        begun += case.summary.last_of_rank.values()
    return any(later(one, hit) and (not hit.host or one.host == hit.host) for one in begun)


def _measured_after(case: Case, hit: Hit) -> bool:
    """Whether a test's rows follow an adapter's refusal of a datagram's queue pair: MPI's own (NCCL has none), and it went another way."""
    return (
        hit.signature == "modify-qp" and "UD QP" in hit.text and any(later(row, hit) for row in case.lasts("busbw-row"))
    )


# Drivers of adapters that carry no RDMA: what NCCL sends goes through their interfaces only where it names them.
_NO_RDMA = re.compile(
    r"\b(?:i40e|igb|igc|ixgbe|e1000e|tg3|bnx2x|r8169|r8152|atlantic|virtio_net) [\w:.]+ (?P<interface>[\w.-]{2,15}): "
)


def _not_the_jobs(case: Case, hit: Hit) -> bool:
    """Whether the link of an interface went down that the job does not use: NCCL names the ones that it uses."""
    if hit.signature != "kernel-link-down":
        return False
    of, used = _NO_RDMA.search(hit.text), _interfaces(case)
    return of is not None and bool(used) and of["interface"] not in used


@functools.lru_cache(maxsize=1)
def _interfaces(case: Case) -> set[str]:
    """The interfaces that NCCL says it uses."""
    return {one.groups["interface"] for one in case.hits("bootstrap-using")}


_RAN = re.compile(r"ran for (\d{1,9}) milliseconds")
_IN_TIME = 60.0  # seconds: what is told so soon after may have been so when the collective began


def _while_they_waited(case: Case, hit: Hit) -> bool:
    """Whether a link went down when the first collective that ran out of time had already been waiting: it waited for another."""
    if hit.signature != "kernel-link-down" or hit.seconds is None:
        return False
    wait = _first_wait(case)
    return wait is not None and wait[0] + _IN_TIME < hit.seconds < wait[1]


@functools.lru_cache(maxsize=1)
def _first_wait(case: Case) -> tuple[float, float] | None:
    """When the first collective that ran out of time began, and when the first watchdog ended one; None if no line tells both."""
    ends = ((one.seconds, _RAN.search(one.text)) for one in case.hits("watchdog-timeout") if one.seconds is not None)
    waits = [(end - int(ran[1]) / 1000, end) for end, ran in ends if ran]
    return (min(began for began, _ in waits), min(end for _, end in waits)) if waits else None


def _by_hand(case: Case, hit: Hit) -> bool:
    return case.hang.ended_by(hit)


_DISMISSED = {"no-hca": _passed_over, "nccl-frame": _of_a_debugger, "joined-partly": _complete_after}
# What is left of a cause whose lines are all excused so.
_LEFT: tuple[tuple[Callable[[Case, Hit], bool], float], ...] = (
    (_beside_the_job, 0.58),
    (_came_back, 0.55),
    (_only_an_event, 0.45),
    (_of_an_attempt_before, 0.45),
    (_pod_replaced, 0.45),
    (_of_one_host, 0.45),
    (_started_otherwise, 0.3),
    (_began_all_the_same, 0.3),
    (_measured_after, 0.3),
    (_not_the_jobs, 0.4),
    (_while_they_waited, 0.45),
    (_the_disk_failed, 0.45),
    (_went_another_way, 0.45),
    (_of_another_job, 0.4),
    (_by_hand, 0.3),
    (_store_is_gone, 0.3),
    (_ended_by_others, 0.2),
    (_up_at_the_start, 0.2),
    (_switched_off, 0.18),
)


def accuses(case: Case, hit: Hit) -> bool:
    """Whether nothing else accounts for this line of a cause or symptom."""
    excuse = _DISMISSED.get(hit.signature)
    return not _follows_failed_task(case, hit) and (excuse is None or not excuse(case, hit))


def most(case: Case, hits: list[Hit]) -> float:
    """The most that these lines of one signature can prove, on the scale of strength; 1 where nothing excuses them all."""
    return min((left for excuse, left in _LEFT if all(excuse(case, hit) for hit in hits)), default=1.0)
