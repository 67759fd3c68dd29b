"""Lint of variables that act together: contradictions, silenced settings, and which source wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_doctor.env import number
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.lint import Edit, Remark, Said, doubtful, remark
from nccl_doctor.findings.model import Severity

_IB_ONLY = (
    *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_TC", "NCCL_IB_SL"),
    *("NCCL_IB_QPS_PER_CONNECTION", "NCCL_NET_GDR_LEVEL"),
)


def _of(members: Sequence[Assignment], name: str) -> list[Assignment]:
    """The assignments of a name, in order."""
    return [item for item in members if item.name == name]


def _on(item: Assignment) -> bool:
    """Whether a switch is set to 1."""
    return item.value is not None and number.as_read(item.value) == 1


def _pairs(members: Sequence[Assignment], one: str, two: str) -> Iterator[tuple[Assignment, Assignment]]:
    """The last pair of assignments of two names that can hold at once (at most one pair per scope)."""
    for first in reversed(_of(members, one)):
        for second in reversed(_of(members, two)):
            if first.meets(second):
                yield first, second
                return


def _against(
    item: Assignment,
    other: Assignment,
    title: str,
    fix: str,
    severity: Severity = Severity.WARN,
    edit: Edit | None = None,
) -> Remark:
    """A setting that another one stands against; both are quoted."""
    return remark(item, Said("contradiction", title, severity=severity, fix=fix, edit=edit), others=(other,))


def no_infiniband(members: Sequence[Assignment]) -> Iterator[Remark]:
    """InfiniBand switched off and configured at once."""
    for first, net in _pairs(members, "NCCL_IB_DISABLE", "NCCL_NET"):
        if _on(first) and (net.value or "").casefold() == "ib":
            yield _against(
                first,
                net,
                "NCCL_NET=IB demands what NCCL_IB_DISABLE=1 switches off: initialisation fails",
                "Remove one of them.",
                Severity.FAIL,
            )
    for name in _IB_ONLY:
        for first, second in _pairs(members, "NCCL_IB_DISABLE", name):
            if _on(first) and second.value != "":
                yield _against(
                    second,
                    first,
                    f"{name} has no effect: NCCL_IB_DISABLE=1 switches the InfiniBand transport off",
                    "Remove NCCL_IB_DISABLE (and everything between hosts stops running over TCP), or this line.",
                )
    for net, hca in _pairs(members, "NCCL_NET", "NCCL_IB_HCA"):
        if (net.value or "").casefold() == "socket":
            yield _against(
                hca, net, "NCCL_IB_HCA has no effect: NCCL_NET=Socket allows TCP only", "Remove one of them."
            )


def no_peer_to_peer(members: Sequence[Assignment]) -> Iterator[Remark]:
    """NCCL_P2P_DISABLE=1 beats NCCL_P2P_LEVEL; NVLS switched off and demanded."""
    for off, level in _pairs(members, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        if _on(off):
            yield _against(
                level, off, "NCCL_P2P_LEVEL has no effect: NCCL_P2P_DISABLE=1 is looked at first", "Remove one of them."
            )
    for nvls, algo in _pairs(members, "NCCL_NVLS_ENABLE", "NCCL_ALGO"):
        wanted = (algo.value or "").casefold()
        if nvls.value and number.as_read(nvls.value) == 0 and wanted in ("nvls", "nvlstree", "nvls,nvlstree"):
            yield _against(
                algo,
                nvls,
                f"NCCL_ALGO={algo.value} demands what NCCL_NVLS_ENABLE=0 switches off",
                "Remove both.",
                Severity.FAIL,
            )


def limits_crossed(members: Sequence[Assignment]) -> Iterator[Remark]:
    """A minimum above the maximum; too many sockets."""
    for low, high in (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")):
        for least, most in _pairs(members, low, high):
            if least.value and most.value and number.as_read(least.value) > number.as_read(most.value) > 0:
                yield _against(
                    least,
                    most,
                    f"{low}={least.value} is above {high}={most.value}",
                    "Remove both: NCCL chooses the number of channels.",
                )
    for threads, sockets in _pairs(members, "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
        count = number.as_read(threads.value or "") * number.as_read(sockets.value or "")
        if count > 64:
            yield _against(
                threads,
                sockets,
                f"NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD is {count}; NCCL allows 64 and lowers the second",
                "Lower one of them.",
            )


def torch_pairs(members: Sequence[Assignment]) -> Iterator[Remark]:
    """Old and new name of one PyTorch variable, and settings that switch each other off."""
    for new in ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING"):
        for old, now in _pairs(members, f"NCCL_{new}", f"TORCH_NCCL_{new}"):
            if old.value != now.value:
                yield _against(
                    old,
                    now,
                    f"{old.name}={old.value} loses against {now.name}={now.value}: PyTorch 2.2+ takes the new name",
                    f"Remove {old.name}.",
                    edit=Edit(),
                )
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        for other in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DESYNC_DEBUG", "NCCL_ASYNC_ERROR_HANDLING"):
            for blocking, second in _pairs(members, name, other):
                if _on(blocking) and (second.value or "0") != "0":
                    yield _against(
                        second, blocking, f"{other} has no effect: {name}=1 switches it off", f"Remove {name}."
                    )
    for size in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        for buffer, dump in _pairs(members, size, "TORCH_NCCL_DUMP_ON_TIMEOUT"):
            if buffer.value is not None and number.as_read(buffer.value) == 0 and _on(dump):
                yield _against(
                    dump,
                    buffer,
                    f"TORCH_NCCL_DUMP_ON_TIMEOUT=1 has nothing to dump: {size}=0 switches the recorder off",
                    f"Set {size}=2000.",
                )


def subsystems_and_level(members: Sequence[Assignment]) -> Iterator[Remark]:
    """NCCL_DEBUG_SUBSYS chooses among lines that NCCL_DEBUG does not let through, or lets all of them through."""
    for subsystems, level in _pairs(members, "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"):
        chosen, printed = (subsystems.value or "").upper(), (level.value or "").upper()
        if printed in ("VERSION", "WARN"):
            yield _against(
                subsystems,
                level,
                f"NCCL_DEBUG_SUBSYS chooses among INFO lines, and NCCL_DEBUG={level.value} prints none",
                "Remove it, or set NCCL_DEBUG=INFO.",
                Severity.INFO,
            )
        elif printed == "INFO" and chosen[:1] != "^" and {"ALL", "COLL"} & set(chosen.split(",")):
            yield remark(
                subsystems,
                doubtful(
                    "leftover-debugging",
                    f"NCCL_DEBUG_SUBSYS={subsystems.value} prints a line for every collective of every rank",
                    fix="Write NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH, which tells devices and paths.",
                    edit=Edit(value="INIT,ENV,NET,GRAPH"),
                ),
                others=(level,),
            )


def first_line_wins(members: Sequence[Assignment]) -> Iterator[Remark]:
    """In nccl.conf the first line of a name wins, not the last; in env lists the last one does."""
    seen: dict[str, Assignment] = {}
    for item in members:
        if item.how not in (How.CONF, How.YAML, How.ENV_FILE) or item.branch:
            continue
        before = seen.get(item.name)
        if before is None or before.value == item.value or before.file != item.file:
            seen.setdefault(item.name, item)
            continue
        first_wins = item.how is How.CONF
        loser, winner = (item, before) if first_wins else (before, item)
        yield remark(
            loser,
            doubtful(
                "set-twice",
                f"{item.name} is set twice: the {'first' if first_wins else 'last'} line wins ({winner.value!r})",
                fix="Remove the line that loses.",
                edit=Edit(),
            ),
            others=(winner,),
        )


RULES = (no_infiniband, no_peer_to_peer, limits_crossed, torch_pairs, subsystems_and_level, first_line_wins)
