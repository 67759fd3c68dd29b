"""What made a job slower than it could be though nothing failed: worth knowing beside any answer, never a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nccl_doctor.env import knowledge
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import quotes
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Cause, Hit, Remark

_BETWEEN_HOSTS = re.compile(r"NCCL_(?:IB|NET|DMABUF)(?:_|$)|_EFA_")


def _gpudirect_off(case: Case) -> list[Hit]:
    if not case.between_hosts or case.has("channel-gdr") or not case.has("net-ib-using"):
        return []
    return case.gpudirect_off


def _unused_adapters(case: Case) -> list[Hit]:
    return case.hits("verbs-device") if case.sockets and case.between_hosts else []


# What the lines prove, what it costs, and whose playbook tells more.
_RULES: tuple[tuple[Callable[[Case], list[Hit]], str, str], ...] = (
    (
        _gpudirect_off,
        "GPUDirect RDMA is off: what goes between hosts takes the way through host memory",
        "ib.gdr",
    ),
    (
        lambda case: case.hits("ofi-without-gdr"),
        "the EFA plugin goes without GPUDirect RDMA: right on instances that lack it, slow on those that have it (P4d, P5)",
        "ib.gdr",
    ),
    (
        _unused_adapters,
        "NCCL uses TCP sockets, and a host of these logs has RDMA adapters",
        "ib.device-not-found",
    ),
    (
        lambda case: case.hits("p2p-not-enabled"),
        "GPUs of one host do not reach each other directly: what goes between them takes the way through host memory",
        "gpu.p2p",
    ),
)


def remarks(case: Case, causes: Sequence[Cause]) -> tuple[Remark, ...]:
    """All that these logs tell of lost speed, each with one line of proof, without what is named as the cause already."""
    named = [cause.id for cause in causes[:1]]
    return tuple(remark for remark in (*_seen(case), *_set(case)) if remark.playbook not in named)


def _seen(case: Case) -> Iterator[Remark]:
    for rule, text, playbook in _RULES:
        for hit in rule(case)[:1]:
            yield Remark(text, quotes.quote(hit), playbook)


def _set(case: Case) -> Iterator[Remark]:
    """Variables that stayed from debugging, with what they cost as ``env show`` tells it."""
    known = knowledge.load().variables if case.env else {}
    for name, hits in sorted(case.env.items()):
        why = known[name].leftover.get(case.value(name) or "", "") if name in known else ""
        if why and (case.between_hosts or not _BETWEEN_HOSTS.search(name)):
            text = f"{name}={case.value(name)}: {why}"
            yield Remark(text, quotes.quote(hits[0]), "env.bad-nccl-var.leftover-debugging")
