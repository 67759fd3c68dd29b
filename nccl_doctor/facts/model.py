"""The shape of collected facts: one bundle, its hosts, and on each host one result per probe.

A *fact* is the typed form of one probe's data: a frozen ``msgspec.Struct`` that derives from :class:`Fact` and names
its probe. Facts are decoded lazily from the plain JSON in the bundle, so a bundle written by another version can be
read as long as the fields a rule needs are there; what is not there is *missing*, and missing is never healthy.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast

import msgspec

from nccl_doctor.facts import files

BUNDLE_SCHEMA = 1

# What cannot be below zero: a fact in which it is says nothing.
Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Bytes = Annotated[float, msgspec.Meta(ge=0, lt=2**63)]  # a mean; no address space holds more


class Outcome(enum.Enum):
    """How one probe ended on one host. Only ``OK`` and ``TRUNCATED`` carry data that a rule may look at."""

    OK = "ok"
    TRUNCATED = "truncated"  # data is there, but not all of it
    TOOL_MISSING = "tool-missing"
    NOT_PERMITTED = "not-permitted"
    NOT_SUPPORTED = "not-supported"  # the driver or kernel has no such thing to ask
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    NOT_RUN = "not-run"  # left out: --stage, --skip, the deadline, or ground that was missing


class ReachOutcome(enum.Enum):
    """How the attempt to start an agent on a host ended. Every value but ``OK`` is a finding of its own."""

    OK = "ok"
    NAME_UNRESOLVED = "name-unresolved"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    TIMED_OUT = "timed-out"
    HOST_KEY_CHANGED = "host-key-changed"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    AUTH_FAILED = "auth-failed"
    NO_PYTHON = "no-python"
    PYTHON_TOO_OLD = "python-too-old"
    CUT_OFF = "cut-off"  # the stream ended in the middle of an answer
    GARBAGE = "garbage"  # bytes came back that are not our protocol (a login banner, a broken shell profile)
    TRANSPORT_FAILED = "transport-failed"  # the transport's own program failed (srun, kubectl, ssh -J ...)
    NOT_TRIED = "not-tried"  # or hardly: the run's deadline, or the stop after repeated authentication failures


SETUP_FAILED = "--env-setup failed"  # so begins the detail where the user's own line ended the start
OURS = "this machine"  # so begins the detail of a failed transport that proves nothing of the host
NO_WAY_OUT = f"{OURS} has no way"  # so says the detail where its own routes lead nowhere, or forbid it
UNSIGNED = f"{OURS}'s ssh agent does not sign"  # so says the detail where no key was refused but by the own agent
NO_ANSWER = "connected, but the agent did not answer"  # so begins the detail where the login worked and nothing came
NO_START = "started, but the agent did not answer"  # so it begins where a program makes the connection, and tells nothing of it


class Reach(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a host was reached, or why not.

    ``detail`` is one sentence; ``evidence`` are quoted lines (the ssh error, both fingerprints, the first bytes of a
    banner). ``seconds`` is the time until the agent answered.
    """

    outcome: ReachOutcome
    detail: str = ""
    evidence: tuple[str, ...] = ()
    address: str = ""  # the address that was connected to
    port: int = 0
    seconds: float = 0.0
    user: str = ""  # as the hostfile says; empty where ssh's own config decides
    by_ssh: bool = True  # whether ssh leads there; else it is this machine, or kubectl or srun does

    @property
    def why(self) -> str:
        """Why the host was not reached, in one sentence, or at least in one word."""
        return self.detail or self.outcome.value


F = TypeVar("F", bound="Fact")


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the typed facts. ``PROBE`` is the probe's name: the key in :attr:`HostFacts.probes`."""

    PROBE: ClassVar[str]

    def completed(self: F) -> F:
        """The fact as rules see it: with what one part of it can say in place of another that was not there.

        ``ValueError`` where a part of it cannot be what it is told as.
        """
        return self

    def without(self: F, peers: Collection[str]) -> F:
        """The fact without what it tells of these hosts."""
        return self


class ProbeResult(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One probe on one host: how it ended, its data as plain JSON, and where it did not end well, why.

    In a bundle that was read from a file, ``data`` is the JSON text itself (``msgspec.Raw``): rules look at it through
    :meth:`fact`.
    """

    outcome: Outcome
    data: Any = None
    detail: str = ""
    seconds: float = 0.0

    @property
    def why(self) -> str:
        """How it ended, in words; the kind of the end once, and not where the detail says all (left out)."""
        kind = self.outcome.value
        told = self.outcome is Outcome.NOT_RUN or self.detail.startswith(kind)
        return (self.detail if told else f"{kind}: {self.detail}") if self.detail else kind

    def fact(self, kind: type[F]) -> F:
        """The data as this typed fact, decoded once for all who ask; ``msgspec.DecodeError`` if it does not fit."""
        known: dict[type[Fact], Fact] = self.__dict__.setdefault("facts", {})
        if kind not in known:
            raw = isinstance(self.data, msgspec.Raw)
            plain = files.from_json(self.data, kind) if raw else msgspec.convert(self.data, kind)
            try:
                known[kind] = plain.completed()
            except ValueError as error:
                raise msgspec.ValidationError(str(error)) from error
        return cast(F, known[kind])


def fact_of(probes: Mapping[str, ProbeResult], kind: type[F]) -> F | None:
    """The fact that these probes (by name) tell; None where its probe did not end with complete, readable data."""
    result = probes.get(kind.PROBE)
    if result is None or result.outcome is not Outcome.OK:
        return None
    try:
        return result.fact(kind)
    except msgspec.DecodeError:
        return None


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known of one host. ``name`` is the host as the inventory spells it."""

    name: str
    reach: Reach
    probes: dict[str, ProbeResult] = {}
    slots: int | None = None


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the run set out to do: the options that a rule may need to know to judge the facts."""

    stages: tuple[str, ...] = ()
    master: str = ""  # the host (inventory name) whose master port is tested
    master_port: int = 29500
    mesh: str = "sparse"  # sparse: ring plus random pairs; full: every ordered pair
    quick: bool = False
    env: dict[str, str] = {}  # NCCL/torch variables the job will run with (allow-listed, redacted)
    require: tuple[str, ...] = ()  # what the job needs, as ``name=value``
    nccl_version: str = ""  # the version the user named; empty: the one found on the hosts
    job: str = ""  # which of the jobs that run on the hosts; empty: every one


class Bundle(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything one run collected; all that rules, findings and reports are computed from.

    ``created`` is an ISO 8601 UTC time. ``hosts`` is sorted by name, so that equal facts give equal bytes.
    ``interrupted``: the user ended the run; what was not measured until then is missing.
    """

    schema: int
    tool: str  # nccl-doctor's version
    created: str
    plan: Plan
    hosts: tuple[HostFacts, ...]
    seconds: float = 0.0
    interrupted: bool = False
