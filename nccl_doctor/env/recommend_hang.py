"""What to set so that a job that hangs leaves evidence behind: NCCL's log, and PyTorch's flight recorder."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_doctor.env import knowledge, versions
from nccl_doctor.env.lint_names import TIMEOUT_CODE
from nccl_doctor.env.recommend_model import Draft, HostNeeds
from nccl_doctor.env.versions import at_least
from nccl_doctor.findings.model import EnvAdvice


def hang(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """What leaves evidence behind when a job hangs, by PyTorch release."""
    for name, value, reason, confidence in (
        ("NCCL_DEBUG", "INFO", "interfaces, HCAs, paths and errors in each rank's log", 1.0),
        ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,GRAPH", "what INFO tells, without a line per call", 1.0),
        ("NCCL_DEBUG_FILE", "/tmp/nccl-%h-%p.log", "one file per rank, so that lines do not mix", 0.9),
    ):
        draft.add(EnvAdvice(name, value, reason), confidence, "asked for: a hung job")
    found = sorted({host.torch_version for host in hosts if host.torch_version}, key=versions.parse)
    if found:
        _recorder(found[0], draft)
    else:
        draft.unknown.append("flight recorder: no PyTorch was found, its variables depend on the release")
    draft.note(
        "the time-out is code; a longer one cures stragglers only, and a shorter one makes a hang show sooner",
        TIMEOUT_CODE,
    )


def recorder(torch_version: str) -> tuple[EnvAdvice, ...]:
    """What to set so that this PyTorch leaves evidence of a hang behind; nothing where it cannot."""
    draft = Draft()
    _recorder(torch_version, draft)
    return tuple(line.advice for line in draft.lines)


def _recorder(torch_version: str, draft: Draft) -> None:
    release, fact = versions.parse(torch_version), f"PyTorch {torch_version}"
    if not at_least(release, "2.2"):
        draft.leave("TORCH_NCCL_TRACE_BUFFER_SIZE", f"{fact} has no flight recorder (2.2 and later)")
        return
    new = at_least(release, "2.8")
    size = "TORCH_FR_BUFFER_SIZE" if new else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    if at_least(release, "2.11"):
        draft.leave(size, f"{fact}: the flight recorder is on by default (2000 entries)")
    else:
        why = "the flight recorder is off by default before 2.11"
        draft.add(EnvAdvice(size, "2000", why, "torch 2.2-2.10"), 0.95, fact)
    dump = "TORCH_NCCL_DUMP_ON_TIMEOUT"
    if at_least(release, "2.7"):
        draft.leave(dump, f"{fact}: on by default")
    else:
        draft.add(EnvAdvice(dump, "1", "off by default before 2.7", "torch 2.2-2.6"), 0.95, fact)
    file = "TORCH_FR_DUMP_TEMP_FILE" if new else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    why = "a known place for the dumps (the rank is appended); better on a shared file system"
    releases = "torch >=2.8" if new else "torch 2.2-2.7"
    draft.add(EnvAdvice(file, "/tmp/nccl_trace_rank_", why, releases), 0.9, fact)
    desync = "TORCH_NCCL_DESYNC_DEBUG"
    if at_least(release, knowledge.load().variables[desync].legacy_since):
        why = f"{fact}: the default backend nccl2 does not read it (TORCH_DIST_USE_NCCL2=0 brings the old one back)"
        draft.leave(desync, why)
    else:
        why = "the watchdog says which ranks diverged; every collective writes to the store, so only while hunting"
        draft.add(EnvAdvice(desync, "1", why, "torch >=2.2", risky=True), 0.8, fact)
