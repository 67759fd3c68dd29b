"""Hosts on which no agent could be started: one finding per way this can go wrong, with what to try next."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from nccl_doctor.facts.model import (
    NO_ANSWER,
    NO_START,
    NO_WAY_OUT,
    OURS,
    SETUP_FAILED,
    UNSIGNED,
    Bundle,
    HostFacts,
    Reach,
    ReachOutcome,
)
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding


class _Way(NamedTuple):
    """A way in which reaching a host goes wrong: finding id, title, and what to try next.

    ``{host}``, ``{address}``, ``{login}`` and ``{known}`` are filled in. ``there``: the command to run on the host, for one
    that is not reached by ssh.
    """

    id: str
    title: str
    advice: str
    command: str
    there: str = ""


_WAYS = {
    ReachOutcome.NAME_UNRESOLVED: _Way(
        "host.name-unresolved",
        "this machine cannot resolve the host's name",
        "check the spelling in the hostfile, or add HostName to your ssh config",
        "getent hosts {host}",
    ),
    ReachOutcome.REFUSED: _Way(
        "host.ssh-refused",
        "nothing listens on the ssh port: the host is up, its sshd is not (or listens elsewhere)",
        "start sshd on the host, or give its port in the hostfile (host:port) or ssh config",
        "ssh -v {login} true",
    ),
    ReachOutcome.NO_ROUTE: _Way(
        "host.no-route",
        "no route to the host: it is down, or its network is",
        "check that the host is powered on and its link is up (console, BMC)",
        "ping -c 3 {address}",
    ),
    ReachOutcome.TIMED_OUT: _Way(
        "host.ssh-timeout",
        "the host did not answer in time",
        "look at the host's console: it is down, hung, overloaded, or a firewall drops ssh",
        "ping -c 3 {address}; ssh -v -o ConnectTimeout=10 {login} true",
    ),
    ReachOutcome.HOST_KEY_CHANGED: _Way(
        "host.ssh-key-changed",
        "the host's ssh key is not the one in known_hosts: reinstalled, or not the host it claims to be",
        "compare the fingerprint with one from the host's console; only if it matches, remove the old key",
        "ssh-keygen -R {known}",
    ),
    ReachOutcome.HOST_KEY_UNKNOWN: _Way(
        "host.ssh-key-unknown",
        "the host's ssh key is not in known_hosts, and nccl-doctor never accepts a key by itself",
        "verify the key out of band, then add it by connecting once",
        "ssh {login} true",
    ),
    ReachOutcome.AUTH_FAILED: _Way(
        "host.ssh-auth",
        "the host refused our credentials",
        "check user name and key: the user may be missing in the hostfile, the key not in authorized_keys or the agent",
        "ssh -v {login} true",
    ),
    ReachOutcome.NO_PYTHON: _Way(
        "host.no-python",
        "no Python 3 on the host's PATH, or none where --python says",
        "name the Python that the training job uses: --python /opt/train/bin/python, or --env-setup",
        "ssh {login} 'command -v python3; echo $PATH'",
        "command -v python3; echo $PATH",
    ),
    ReachOutcome.PYTHON_TOO_OLD: _Way(
        "host.python-too-old",
        "the host's Python is older than 3.8",
        "name a newer one: --python /opt/train/bin/python, or --env-setup 'source /opt/train/bin/activate'",
        "ssh {login} 'ls /usr/bin/python3*'",
        "ls /usr/bin/python3*",
    ),
    ReachOutcome.CUT_OFF: _Way(
        "host.cut-off",
        "the connection, or the Python that was started over it, ended before it had answered",
        "see what the login does before a command: a profile that fails, ends, reads standard input or starts another "
        "shell (~/.bashrc runs for commands, too), a restricted shell, a host out of memory",
        "ssh {login} 'sh -c \"echo started\"'; ssh {login} 'sudo dmesg -T | tail -50'",
        "sudo dmesg -T | tail -50",
    ),
    ReachOutcome.GARBAGE: _Way(
        "host.unexpected-output",
        "something other than our agent answered over ssh",
        "a shell profile, a forced command or a captive gateway writes to standard output, or reads standard input: mend it",
        "ssh {login} true | head -c 300",
    ),
    ReachOutcome.TRANSPORT_FAILED: _Way(
        "host.transport-failed", "the transport's command failed", "run it by hand and read its error", ""
    ),
    ReachOutcome.NOT_TRIED: _Way(
        "host.not-tried",
        "the host was not tried, or not for long enough",
        "run again for this host alone, or with a longer --deadline",
        "nccl-doctor check -H {host}",
    ),
}

_NO_ANSWER = _Way(
    "host.ssh-timeout",
    "the login works, but nothing starts after it",
    "see what the login waits for: --env-setup where it was given, a shell profile that reads input or sleeps, a forced "
    "command in authorized_keys or sshd_config, a home directory on a hung file system, a host out of memory",
    "time ssh -v {login} 'echo started'",
)

_NO_START = _Way(
    "host.ssh-timeout",
    "the command that should lead to the host gives no answer in time",
    "run it by hand, with echo started in place of the agent: it waits for its server or scheduler, for the container, or for what "
    "starts there (--env-setup where it was given, a shell profile)",
    "",
)

_NO_WAY_OUT = _Way(
    "host.no-route",
    "this machine, not the host, lets nothing out there: it has no route, or one that forbids it",
    "see this machine's routes and firewall",
    "ip -br address; ip route get {address}; sudo nft list ruleset",
)

_LOST = _Way(
    "host.cut-off",
    "the connection ended in the middle of the run",
    "look for a reboot, an out-of-memory kill, an sshd restart or a flapping link",
    "ssh {login} 'uptime; sudo dmesg -T | tail -50'",
    "uptime; sudo dmesg -T | tail -50",
)

_SETUP = _Way(
    "host.transport-failed",
    "the --env-setup line failed on the host",
    "try the line there: it runs in bash, in the login's home directory, without a terminal",
    "ssh {login}",
)

_HERE = _Way(
    "host.transport-failed",
    "this machine, not the host, lacks or cannot do what the way there needs",
    "mend it here (the ssh program is Debian's openssh-client), or reach hosts another way: --transport",
    "ssh -v {login} true",
)

_UNSIGNED = _Way(
    "host.ssh-auth",
    "this machine's ssh agent, not the host, refused: it does not sign with the keys that it lists",
    "see the agent: it is locked, a key asks for a touch or a confirmation, or its card is not there",
    "ssh-add -l; ssh {login} true",
)

_JUMP = re.compile(r"(?:jump host (\S+): )+")  # the last of them is the one that was not passed

# Of an outcome, where its detail matches, another way than the usual one.
_SPECIAL: tuple[tuple[ReachOutcome, Callable[[str], bool], _Way], ...] = (
    (ReachOutcome.TIMED_OUT, lambda detail: detail.startswith(NO_ANSWER), _NO_ANSWER),
    (ReachOutcome.TIMED_OUT, lambda detail: detail.startswith(NO_START), _NO_START),
    (ReachOutcome.NO_ROUTE, lambda detail: NO_WAY_OUT in detail, _NO_WAY_OUT),  # to the host, or to a jump host
    (ReachOutcome.TRANSPORT_FAILED, lambda detail: detail.startswith(SETUP_FAILED), _SETUP),
    (ReachOutcome.TRANSPORT_FAILED, lambda detail: _JUMP.sub("", detail).startswith(OURS), _HERE),
    (ReachOutcome.AUTH_FAILED, lambda detail: UNSIGNED in detail, _UNSIGNED),
    (ReachOutcome.CUT_OFF, lambda detail: detail.startswith("connection lost"), _LOST),
)
# What this machine itself, cut off from the network, would see of every host.
_SILENCE = (_WAYS[ReachOutcome.TIMED_OUT], _WAYS[ReachOutcome.NO_ROUTE])
# What says nothing of the host.
_NOT_THE_HOST = (_WAYS[ReachOutcome.NOT_TRIED], _NO_WAY_OUT, _HERE, _UNSIGNED)

IDS = tuple(way.id for way in _WAYS.values())


def reach_findings(bundle: Bundle) -> list[Finding]:
    """One finding for every host on which no agent ran, alike ones folded into one."""
    alike: dict[tuple[str, ReachOutcome, str], list[HostFacts]] = {}
    for facts in bundle.hosts:
        if facts.reach.outcome is not ReachOutcome.OK:
            # Host-key findings are never folded: each has its own fingerprints.
            own = facts.name if facts.reach.outcome is ReachOutcome.HOST_KEY_CHANGED else ""
            alike.setdefault((_title(facts.reach), facts.reach.outcome, own), []).append(facts)
    failed = [facts for hosts in alike.values() for facts in hosts]
    silent = len(failed) == len(bundle.hosts) and all(_way(facts.reach) in (*_SILENCE, _NO_WAY_OUT) for facts in failed)
    count = len(bundle.hosts) if silent else 0
    return [_finding(hosts, count) for _, hosts in sorted(alike.items(), key=lambda item: item[0][1].value)]


def _way(reach: Reach) -> _Way:
    special = (way for outcome, fits, way in _SPECIAL if reach.outcome is outcome and fits(reach.detail))
    return next(special, _WAYS[reach.outcome])


def _jump(reach: Reach) -> str:
    """The jump host whose trouble this is; empty where it is the host's own."""
    found = _JUMP.match(reach.detail)
    return found[1] if found else ""


def _title(reach: Reach) -> str:
    jump, title = _jump(reach), _way(reach).title
    return title.replace("the host", f"the jump host {jump}", 1) if jump else title


def _guilty(facts: HostFacts) -> HostFacts:
    """The host at which the commands are aimed: the jump host, where the way ends there."""
    user, _, place = _jump(facts.reach).rpartition("@")
    if not place:
        return facts
    name = re.sub(r":[0-9]+$", "", place).strip("[]")
    return msgspec.structs.replace(facts, name=name, reach=msgspec.structs.replace(facts.reach, user=user))


def _told(reach: Reach) -> tuple[str, ...]:
    """What happened, then what was seen; never nothing."""
    seen = tuple(text for text in reach.evidence if text not in reach.detail)
    return (reach.detail, *seen) if reach.detail else seen or (reach.outcome.value,)


def _login(facts: HostFacts) -> str:
    """What ssh takes to go the way this run went: a user or port of the hostfile is in no ssh config."""
    port = f"-p {facts.reach.port} " if facts.reach.port not in (0, 22) else ""
    return f"{port}{facts.reach.user}@{facts.name}" if facts.reach.user else f"{port}{facts.name}"


def _finding(hosts: list[HostFacts], silent: int) -> Finding:
    """``silent``: how many hosts there are, if none of them answered."""
    first = _guilty(hosts[0])
    title, way = _title(hosts[0].reach), _way(hosts[0].reach)
    evidence = [
        Evidence(text, source=f"connect {facts.reach.address or facts.name}", host=facts.name)
        for facts in (hosts if first is hosts[0] else hosts[:1])  # a jump host's trouble is one for all behind it
        for text in _told(facts.reach)
    ]
    port = first.reach.port
    known = first.name if port in (0, 22) else f"'[{first.name}]:{port}'"  # as known_hosts spells it
    address = first.reach.address or first.name
    command = way.command.format(host=first.name, address=address, login=_login(first), known=known)
    fixes = [Fix(way.advice, command) if first.reach.by_ssh else Fix(way.advice, way.there, first.name)]
    if first.reach.outcome is ReachOutcome.AUTH_FAILED and any("password" in text for text in first.reach.evidence):
        told = "it would take a password, which nccl-doctor never asks for: put your key there"
        fixes.append(Fix(told, f"ssh-copy-id {_login(first)}"))
    doubt = silent > 1 and way in _SILENCE and first is hosts[0]
    if doubt:
        title += f"; none of the {silent} hosts answers, so it may be this machine that is cut off"
        fixes.insert(
            0, Fix("first look at this machine's own way to them", _NO_WAY_OUT.command.format(address=address))
        )
    if first.name in ("localhost", "127.0.0.1", "::1"):
        fixes.insert(0, Fix("this machine itself is looked at without ssh, by the same command without --hosts and -H"))
    return finding(
        way.id,
        Severity.WARN if way in _NOT_THE_HOST else Severity.FAIL,
        title,
        evidence,
        confidence=0.6 if doubt else 1.0,
        places=[Place(host=facts.name) for facts in hosts],
        fixes=fixes,
    )
