"""Software compared between hosts: which of them differ, in what, and what a difference means."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.software import Software
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.drift import DriftRow, row, table
from nccl_doctor.rules.engine import Fleet, SkipRule, fleet_rule


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of drift.yaml: what a difference means. ``compare``: how many parts of the version count; 0 all."""

    severity: Severity
    id: str
    compare: int
    why: str


@functools.cache
def subjects() -> dict[str, Subject]:
    """What is compared between hosts, in the order of the table."""
    return msgspec.convert(read_yaml(Path(__file__).parent / "drift.yaml"), dict[str, Subject])


def versions(software: Software) -> dict[str, str]:
    """Subject -> version on one host, empty where the host has none of it."""
    torch = software.torch
    net = [plugin for plugin in software.plugins if plugin.kind == "net"]
    return {
        "NCCL": "built into torch" if torch and torch.nccl_link == "built-in" else software.installed_nccl,
        "torch": torch.version if torch else "",
        "torch CUDA": (torch.cuda or (f"ROCm {torch.hip}" if torch.hip else "none")) if torch else "",
        "Python": software.python.version,
        "driver": software.driver.version,
        "cuDNN": software.cudnn,
        "triton": software.distributions.get("triton", software.distributions.get("pytorch-triton", "")),
        "numpy": software.distributions.get("numpy", ""),
        "network plugin": ", ".join(sorted({plugin.real_path.rsplit("/", 1)[-1] for plugin in net})),
        "OFED": software.ofed.get("release", ""),
        "mlx5_core": software.ofed.get("mlx5_core", ""),
        "kernel": software.system.kernel,
        "C library": software.system.glibc,
        "distribution": software.system.distribution,
        "architecture": software.system.architecture,
    }


def drift_table(every: Mapping[str, Software]) -> tuple[DriftRow, ...]:
    """Every subject over all hosts, whole versions, for the report; :func:`drift` judges it."""
    found = {host: versions(software) for host, software in every.items()}
    # A host without torch differs in torch, and in nothing that is a part of it.
    parts = {"torch CUDA": {host for host, software in every.items() if software.torch is None}}
    return table(
        {
            subject: {host: values[subject] for host, values in found.items() if host not in parts.get(subject, ())}
            for subject in subjects()
        }
    )


def _shortened(version: str, parts: int) -> str:
    return ".".join(version.split(".")[:parts]) if parts else version


@fleet_rule(
    "software",
    "sw.nccl-version-mismatch",
    "sw.nccl-version-mismatch.torch",
    "sw.nccl-version-mismatch.cuda",
    "sw.drift.python",
    "sw.drift.driver",
    "sw.drift.libraries",
    "sw.drift.network-plugin",
    "sw.drift.ofed",
    "sw.drift.system",
    "sw.drift.architecture",
)
def drift(fleet: Fleet) -> Iterator[Finding]:
    """NCCL, torch, CUDA, driver and the rest are equal on all hosts.

    The hosts that differ from a majority are named. Two hosts that differ are both named: nobody knows which is right.
    The driver is judged here only if the gpu stage, which compares it too, is left out.
    """
    every = fleet.every(Software)
    if len(every) < 2:
        raise SkipRule("one host: nothing to compare with")
    rows: dict[str, list[tuple[str, DriftRow]]] = {}
    for shown in drift_table(every):
        subject = subjects()[shown.subject]
        judged = row(
            shown.subject, {host: _shortened(value, subject.compare) for value, hosts in shown.values for host in hosts}
        )
        if not judged.equal and not (shown.subject == "driver" and "gpu" in fleet.plan.stages):
            rows.setdefault(subject.id, []).append((shown.subject, judged))
    for id, differing in rows.items():
        yield _drift_finding(id, differing)


def _drift_finding(id: str, rows: list[tuple[str, DriftRow]]) -> Finding:
    worst = min((subjects()[name].severity for name, _ in rows), key=list(Severity).index)
    hosts = tuple(sorted({host for _, found in rows for host in found.differing}))
    name, first = rows[0]
    more = f" (and {', '.join(other for other, _ in rows[1:])})" if len(rows) > 1 else ""
    if first.tie:
        values = ", ".join(f"{value or 'none'} on {few(group)}" for value, group in first.values[:4])
        title = f"{name}{more} differs, and no version has a majority: {values}"
    else:
        odd = ", ".join(f"{value or 'none'} on {few(group)}" for value, group in first.values[1:4])
        title = (
            f"{name}{more} differs: {odd}; the other {len(first.values[0][1])} hosts have {first.majority or 'none'}"
        )
    fixes = [Fix(f"{_cure(name, first, hosts)} ({subjects()[name].why})")]
    if name == "torch" and "" in dict(first.values):
        fixes.append(Fix("or, if the job uses another Python there, name it: --python PATH, --env-setup LINE"))
    return finding(
        id,
        worst,
        title,
        tuple(
            Evidence(f"{subject} {value or 'none'}: {few(group)}", "software", host=group[0])
            for subject, found in rows
            for value, group in found.values[:4]
        ),
        hosts=hosts,
        fixes=fixes,
        explains=("collectives",) if worst is Severity.FAIL else (),
    )


def _cure(name: str, row: DriftRow, hosts: tuple[str, ...]) -> str:
    return f"bring {few(hosts)} to {name} {row.majority}" if row.majority else f"choose one {name} for all hosts"
