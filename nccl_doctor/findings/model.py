"""A finding: what is wrong, how sure, where, the quoted proof, and what to do."""

from __future__ import annotations

import enum
import re

import msgspec


class Severity(enum.Enum):
    """``FAIL`` breaks or cripples a job; ``WARN`` may; ``INFO`` is worth knowing and never changes the verdict."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quoted fact. ``text`` is what was read, verbatim (redacted); the rest says where it stands.

    ``source`` is a file, a command or a probe (``/etc/hosts``, ``nvidia-smi -q``, ``connect 10.0.0.3:29500``);
    ``line`` counts from 1.
    """

    text: str
    source: str = ""
    line: int | None = None
    host: str = ""
    rank: int | None = None

    @property
    def place(self) -> str:
        """``gpu01:/etc/hosts:2``: what is known of where it stands; empty where nothing is."""
        return ":".join(part for part in (self.host, self.source, str(self.line or "")) if part)


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to blame, as exactly as it is known. ``peer`` is the host at the other end of a link."""

    host: str = ""
    rank: int | None = None
    gpu: str = ""
    nic: str = ""
    peer: str = ""
    port: int | None = None


class Fix(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to do: a sentence, and where there is one, the command to paste and the host to paste it on.

    ``risky`` marks what can interrupt running work or lose data.
    """

    text: str
    command: str = ""
    host: str = ""
    risky: bool = False

    @property
    def told(self) -> str:
        """What to do, and what it may cost."""
        return self.text + (" (can interrupt running work)" if self.risky else "")


_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:,@%+-][A-Za-z0-9_./:,@%+=-]*", re.ASCII)


def shell_word(value: str) -> str:
    """``value`` as one word of any shell: quoted unless plain. A leading ``=`` is quoted too: zsh expands ``=eth0``."""
    return value if _PLAIN_WORD.fullmatch(value) else "'" + value.replace("'", "'\\''") + "'"


class EnvAdvice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One environment variable to set (or, with ``unset``, to remove), and the fact that calls for it.

    ``versions`` is the NCCL (or torch) range it holds for, such as ``>=2.28`` or ``any``. ``hosts`` are those that
    need it; empty: all.
    """

    name: str
    value: str
    reason: str
    versions: str = "any"
    risky: bool = False
    unset: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """The line to paste into a shell: ``export NAME=value`` or ``unset NAME``."""
        return f"unset {self.name}" if self.unset else f"export {self.name}={shell_word(self.value)}"


SURE = 0.99  # from this confidence on a finding is certain: one about several hosts is a fault of each of them


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem, with its proof. Build it with :func:`finding`, which refuses one without evidence.

    ``id`` is a kebab-case path (``net.mtu.black-hole``), stable for ever, and names the playbook: the playbook of the
    same id, or else of the nearest parent id. ``explains`` lists ids of findings that are consequences of this one.
    """

    id: str
    severity: Severity
    confidence: float  # 0..1
    title: str
    evidence: tuple[Evidence, ...]
    hosts: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    fixes: tuple[Fix, ...] = ()
    env: tuple[EnvAdvice, ...] = ()
    explains: tuple[str, ...] = ()
    stage: str = ""
    folded_under: str = ""  # id of the finding whose consequence this one is


def beneath(id: str, parent: str) -> bool:
    """Whether an id is ``parent`` or one of the finer ids below it: ``net.mtu.black-hole`` is beneath ``net.mtu``."""
    return id == parent or id.startswith(parent + ".")


DENIED = ("not-permitted", "not permitted")  # how the reason of a gap begins that only rights would close


class Unknown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was not measured: what, on which hosts, why, and the command that would measure it."""

    what: str
    hosts: tuple[str, ...]
    why: str
    next: str = ""
    stages: tuple[str, ...] = ()  # the stages of ``check`` whose result it leaves open


def finding(
    id: str,
    severity: Severity,
    title: str,
    evidence: Evidence | tuple[Evidence, ...] | list[Evidence],
    *,
    hosts: tuple[str, ...] | list[str] = (),
    confidence: float = 1.0,
    places: tuple[Place, ...] | list[Place] = (),
    fixes: tuple[Fix, ...] | list[Fix] = (),
    env: tuple[EnvAdvice, ...] | list[EnvAdvice] = (),
    explains: tuple[str, ...] = (),
) -> Finding:
    """Build a finding; ``ValueError`` without evidence, or with evidence that quotes nothing.

    ``hosts`` defaults to the hosts of ``places``; they are kept sorted, so that findings compare equal whatever the
    order in which hosts answered.
    """
    proof = (evidence,) if isinstance(evidence, Evidence) else tuple(evidence)
    if not proof or not all(item.text.strip() for item in proof):
        raise ValueError(f"finding {id}: no evidence, no finding")
    if not 0.0 < confidence <= 1.0:
        raise ValueError(f"finding {id}: confidence {confidence} is not in (0, 1]")
    named = tuple(sorted(set(hosts or (place.host for place in places if place.host))))
    return Finding(
        id=id,
        severity=severity,
        confidence=confidence,
        title=title,
        evidence=proof,
        hosts=named,
        places=tuple(places),
        fixes=tuple(fixes),
        env=tuple(env),
        explains=explains,
    )
