"""Lint of interface and HCA lists: NCCL's filter syntax, Gloo's (which is another), and names that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.env import hca, knowledge
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.knowledge import Answer
from nccl_doctor.env.lint import Context, Edit, Said, doubtful, worth_knowing, wrong
from nccl_doctor.env.socket_interface import Filter, parse_filter
from nccl_doctor.facts.fold import fold
from nccl_doctor.findings.model import Severity

_SOCKET = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_HCA = "NCCL_IB_HCA"
_HCA_NAME = re.compile(r"(?:mlx[45]_|bnxt_re|irdma|hfi1_|rocep|roceo)")
# "ib" alone may be the prefix of HCAs (ibp0).
_LOOKS_LIKE_INTERFACE = re.compile(r"(?:eth|ens|eno|enp|enx|bond|hsn|wlan|docker|lo)\d?|ib\d")
_HCA_FAMILY = re.compile(r"mlx[45]")  # a driver's name, the prefix of all its devices


def _filter(item: Assignment) -> Filter | None:
    """The list as NCCL reads it; None where NCCL ignores it. The port after an HCA's name is left out."""
    value = item.value or ""
    if item.name != _HCA:
        return parse_filter(value, knowledge.nccl_release())
    found = hca.parse(value)
    return Filter(tuple(name for name, _ in found.entries), found.exclude, found.exact) if value else None


def syntax(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Blanks, modifiers in the middle, and values NCCL ignores."""
    value = item.value
    if value is None or item.name not in (*_SOCKET, _HCA) or (item.how is How.CONF and re.search(r"[\s'\"]", value)):
        return  # what nccl.conf makes of blanks and quotes is said already
    parts = value.split(",")
    if value.endswith(",") and item.how in (How.EXPORT, How.PREFIX, How.OPTION):
        yield doubtful(
            "ifname-blank",
            f"{item.name}={value} ends in a comma: the shell ends it at a blank, and what follows one is lost",
            fix="Write the list without blanks.",
            confidence=0.8,
        )
    if len(value) == 1 and item.name != _HCA:
        yield wrong("ifname-ignored", f"{item.name}={value} is ignored: NCCL skips values of one character")
        return
    if re.search(r"\s", value):
        lost = [part for part in parts if part != part.strip()]
        mended = ",".join(part.strip() for part in parts)
        yield wrong(
            "ifname-blank",
            f"{item.name}: blanks are part of a name, so {' and '.join(map(repr, lost or [value]))} never match",
            fix=f"Write {item.name}={mended}",
            edit=Edit(value=mended),
        )
    inner = [part for part in parts[1:] if part[:1] in ("^", "=")]
    if inner:
        mended = parts[0] + "".join("," + part.lstrip("^=") for part in parts[1:])
        yield wrong(
            "ifname-modifier",
            f"{item.name}={value}: ^ and = count only at the very start and hold for the whole list; "
            f"{' and '.join(inner)} never match",
            fix=f"Write {item.name}={mended}, if that is meant",
            edit=Edit(value=mended),
        )


def loopback(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """An exclude list replaces NCCL's own exclusions: without lo in it, lo can be chosen."""
    wanted = _filter(item) if item.name == "NCCL_SOCKET_IFNAME" else None
    if wanted is None:
        return
    if wanted.exclude:
        own = ",".join(dict.fromkeys(("lo", "docker0" if wanted.exact else "docker", *wanted.names)))
        mended = f"^{'=' if wanted.exact else ''}{own}"
        if wanted.takes("lo"):
            yield wrong(
                "ifname-admits-loopback",
                f"{item.name}={item.value} can select lo: a list of one's own replaces NCCL's exclusion of lo and "
                "docker, and lo comes first in kernel order",
                fix=f"Remove it (NCCL leaves out lo, docker and virbr itself), or write {item.name}={mended}",
                edit=Edit(value=mended),
            )
        elif wanted.takes("docker0"):
            yield Said(
                "ifname-admits-docker",
                f"{item.name}={item.value} can select docker0: a list of one's own replaces NCCL's exclusion of docker",
                severity=Severity.INFO if item.how is How.YAML else Severity.WARN,  # a container seldom has one
                fix=f"Remove it (NCCL leaves out lo, docker and virbr itself), or write {item.name}={mended}",
                edit=Edit(value=mended),
                confidence=0.8,
            )
    elif "lo" in wanted.names:
        yield doubtful(
            "ifname-loopback",
            f"{item.name}={item.value} works on one host only: lo comes first in kernel order, and other hosts cannot "
            "reach it",
            fix="Remove it for jobs on several hosts.",
            confidence=0.8,
        )


def wrong_kind(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """HCA names where interfaces belong, and the other way round."""
    if item.value is None or item.name not in ("NCCL_SOCKET_IFNAME", _HCA, "GLOO_SOCKET_IFNAME"):
        return
    names = [part.strip().split(":")[0] for part in item.value.strip().lstrip("^=").split(",")]
    if item.name == _HCA:
        strange = [name for name in names if _LOOKS_LIKE_INTERFACE.fullmatch(name.strip())]
        if strange and not context.devices_of(item):
            yield wrong(
                "hca-names-interface",
                f"{item.name}={item.value}: {', '.join(strange)} is an interface, not an HCA: nothing matches, and "
                "NCCL falls back to TCP without an error",
                fix="Name HCAs as ibv_devices lists them (mlx5_0), or remove the line: NCCL uses all active ones.",
                edit=Edit(),
                confidence=0.9,
            )
    else:
        strange = [name for name in names if _HCA_NAME.match(name.strip())]
        if strange:
            yield wrong(
                "ifname-names-hca",
                f"{item.name}={item.value}: {', '.join(strange)} is an HCA, not a network interface",
                fix="Name an interface as `ip -br link` lists it, or remove the line.",
                edit=Edit(),
                confidence=0.95,
            )


def prefix(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Prefixes that take more than they name, and lists that match nothing on the host."""
    if not item.value or item.name not in ("NCCL_SOCKET_IFNAME", _HCA) or re.search(r"\s", item.value):
        return
    wanted = _filter(item)
    if wanted is None:
        return
    devices = context.devices_of(item)
    present = (devices.hcas if item.name == _HCA else devices.interfaces) if devices else ()
    what = "HCA" if item.name == _HCA else "interface"
    exact = f"{'^' if wanted.exclude else ''}={','.join(wanted.names)}"
    if present:
        taken = [name for name in present if wanted.takes(name)]
        if not taken:
            ends = "falls back to TCP" if item.name == _HCA else "cannot start: there is no fallback"
            yield wrong(
                "ifname-no-match",
                f"{item.name}={item.value} matches no {what} of this host ({', '.join(present)}): NCCL {ends}",
                fix="Correct or remove it.",
                edit=Edit(),
            )
        for name in wanted.names:
            more = [other for other in present if other.startswith(name) and other != name]
            if name in present and more and not wanted.exact:
                yield doubtful(
                    "ifname-prefix",
                    f"{item.name}={item.value}: {name} also takes {', '.join(more)}",
                    fix=f"Write {item.name}={exact}",
                    edit=Edit(value=exact),
                )
        return
    numbered = [name for name in wanted.names if not _HCA_FAMILY.fullmatch(name)]
    wide = [name for name in numbered if re.search(r"(?<!\d)[1-9]\Z", name)]
    if wide and not wanted.exact:
        yield worth_knowing(
            "ifname-prefix",
            f"{item.name}={item.value} is a list of prefixes: {wide[0]} also takes {wide[0]}0 to {wide[0]}9",
            fix=f"Write {item.name}={exact} if only {'this is' if len(wanted.names) == 1 else 'these are'} meant",
            edit=Edit(value=exact),
        )


def gloo(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Gloo wants exact names."""
    if item.name != "GLOO_SOCKET_IFNAME" or not item.value:
        return
    value = item.value
    if re.search(r"[\^=\s]", value):
        yield wrong(
            "gloo-syntax",
            f"{item.name}={value}: Gloo knows no ^, no = and no blanks; it looks for an interface of exactly this name",
            fix="Write one exact interface name, or remove the line and mend the host's name in /etc/hosts.",
            edit=Edit() if value.startswith("^") else Edit(value=value.replace("=", "").replace(" ", "")),
        )
        return
    devices = context.devices_of(item)
    absent = [name for name in value.split(",") if devices and devices.interfaces and name not in devices.interfaces]
    if absent:
        yield wrong(
            "ifname-no-match",
            f"{item.name}={value}: this host has no interface {', '.join(absent)} (Gloo takes exact names only)",
            fix="Correct or remove it.",
        )
    elif re.fullmatch(r"eth|en|ens|eno|enp|ib|bond", value):
        yield doubtful(
            "gloo-syntax",
            f"{item.name}={value} looks like a prefix; Gloo takes exact names only",
            fix=f"Write the exact name ({value}0).",
            confidence=0.7,
        )


def on_the_hosts(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """A list in a file, and the hosts that are looked at beside it: on some of them it matches nothing."""
    gloo_names = item.name == "GLOO_SOCKET_IFNAME"
    if (
        item.host
        or not item.value
        or item.how is How.LOG
        or not (gloo_names or item.name in ("NCCL_SOCKET_IFNAME", _HCA))
    ):
        return
    wanted = None if gloo_names else _filter(item)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for host, devices in context.devices.items():
        present = devices.hcas if item.name == _HCA else devices.interfaces
        fits = set(item.value.split(",")) <= set(present) if wanted is None else any(map(wanted.takes, present))
        if present and not fits and (wanted or gloo_names):
            lacking.setdefault(present, []).append(host)
    what = "HCA" if item.name == _HCA else "interface"
    contained = item.how in (How.YAML, How.DOCKERFILE)
    for present, hosts in lacking.items():
        yield (doubtful if contained else wrong)(
            "ifname-no-match",
            f"{item.name}={item.value} matches no {what} of {fold(hosts)} ({', '.join(present)})"
            + (": a container needs one of its own that does" if contained else ""),
            fix="Correct or remove it.",
            confidence=0.7 if contained else 0.95,
        )


RULES = (syntax, loopback, wrong_kind, prefix, gloo, on_the_hosts)
