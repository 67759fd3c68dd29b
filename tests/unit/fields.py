"""Every field of the facts of a fleet, one at a time: what it decides, and what is said when it is gone or absurd."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

import nccl_doctor.facts
from nccl_doctor.facts.model import Bundle, Fact, HostFacts, Outcome, ProbeResult
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import engine

Path = tuple[str | int, ...]
Pattern = tuple[str, ...]  # a path with ``*`` for what is one of many
BY_NAME = {"resolved", "swept", "types", "losses", "distributions", "libraries"}  # whose keys are names

FEW = 8  # places of one pattern on two hosts

# What a field of this name may say of something broken; for others the values of :func:`others` do.
WORDS: dict[str, tuple[str, ...]] = {
    "outcome": ("timed-out", "failed", "refused", "in-use", "black-hole", "blocked", "not-permitted", "tool-missing"),
    "state": ("1: DOWN", "not-started", "T", "Z"),
    "phys_state": ("2: Polling", "3: Disabled"),
    "rate": ("100 Gb/sec (4X EDR)",),
    "link_layer": ("Ethernet",),
    "compute_mode": ("prohibited",),
    "recovery_action": ("drain-p2p",),
    "read": ("CNS",),
    "write": ("CNS",),
    "*": ("DMA", "10.9.9.9"),
    "address": ("10.9.9.9", "127.0.0.1"),
    "type": ("IB/RoCE v1",),
    "driver": ("535.1", "vfio-pci"),
    "version": ("0.1",),
    "purpose": ("master",),
    "net.ipv4.ip_local_port_range": ("32768 32800",),
    "net.ipv4.tcp_rmem": ("4096 8192 8192",),
    "net.ipv4.tcp_wmem": ("4096 8192 8192",),
}
# One element of a list that is empty where all is well.
ELEMENTS: dict[tuple[str, Pattern], Any] = {
    ("kernel_log", ("lines",)): {"text": "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", "at_s": 9.0},
    ("gpu", ("gpus", "*", "processes")): {"pid": 77, "kind": "compute", "memory_bytes": 1 << 30, "name": "python"},
    ("system", ("gpu_processes", "processes")): {"pid": 77, "command": "python", "state": "D", "devices": ["nvidia0"]},
    ("topology", ("acs", "redirecting")): {"bus_id": "0000:10:01.0", "control": "0x001d"},
    ("system", ("container", "hints")): "/.dockerenv",
}


def at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def changed(data: Any, path: Path, value: Any) -> Any:
    """A copy with another value there; ``...`` takes it away."""
    first, rest = path[0], path[1:]
    copy = dict(data) if isinstance(data, dict) else list(data)
    if rest:
        copy[first] = changed(data[first], rest, value)
    elif value is ...:
        del copy[first]
    else:
        copy[first] = value
    return copy


def walk(data: Any, path: Path = (), pattern: Pattern = ()) -> Iterator[tuple[Path, Pattern]]:
    """Every place below, with its pattern."""
    if path:
        yield path, pattern
    named = isinstance(data, Mapping) and not (pattern and pattern[-1] in BY_NAME)
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list | tuple) else ()
    for part, value in items:
        yield from walk(value, (*path, part), (*pattern, str(part) if named else "*"))


def others(value: Any, probe: str, pattern: Pattern) -> list[Any]:
    """What else this field might say."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [one for one in (0, 1, value * 2 + 1, value // 2, 10**13) if one != value]
    if isinstance(value, str):
        return [*WORDS.get(pattern[-1], ()), value + "1", "x", "", "0"]
    if isinstance(value, list | tuple):
        return [[]] if value else [[ELEMENTS[probe, pattern]]] if (probe, pattern) in ELEMENTS else []
    return [{}] if value else []


BROKEN = "internal-error"
HUGE = 10**30  # what has no limit may say so: it must only break nothing


def nonsense(value: Any) -> list[Any]:
    """What no host can mean by this field: below zero, of another kind, with bytes that steer a terminal."""
    if isinstance(value, bool):
        return ["yes"]
    if isinstance(value, int | float):
        return [-7, HUGE, "many"]  # JSON has no NaN
    if isinstance(value, str):
        return ["\x1b]0;x\x07\x00\u202e\n", {}]
    return ["many"] if value else []


@functools.cache
def kinds() -> dict[str, type[Fact]]:
    """Every fact, by its probe."""
    for module in pkgutil.iter_modules(nccl_doctor.facts.__path__):
        importlib.import_module(f"nccl_doctor.facts.{module.name}")
    ours = [kind for kind in Fact.__subclasses__() if kind.__module__.startswith(nccl_doctor.facts.__name__)]
    return {kind.PROBE: kind for kind in ours}  # other tests declare facts of their own


Visit = Callable[[type[msgspec.Struct], dict[str, Any]], None]


def visited(kind: Any, data: Any, visit: Visit) -> Any:
    """A copy of the data of this type, each of whose structs ``visit`` has seen, from the outside in, and may change."""
    parts, origin = get_args(kind), get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(data, dict):
        data = dict(data)
        visit(kind, data)
        types = get_type_hints(kind)
        names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        return {key: visited(types[names[key]], value, visit) if key in names else value for key, value in data.items()}
    if origin is tuple and isinstance(data, list | tuple):
        return [visited(parts[0], value, visit) for value in data]
    if origin is dict and isinstance(data, dict):
        return {key: visited(parts[1], value, visit) for key, value in data.items()}
    return functools.reduce(lambda one, part: visited(part, one, visit), parts, data)


def whole(bundle: Bundle) -> Bundle:
    """The bundle with what its hosts' agents leave to the defaults: a field that is there can be taken away."""

    def visit(kind: type[msgspec.Struct], data: dict[str, Any]) -> None:
        for field in msgspec.structs.fields(kind):
            if field.default is not msgspec.NODEFAULT:
                data.setdefault(field.encode_name, msgspec.to_builtins(field.default))

    def filled(facts: HostFacts) -> HostFacts:
        probes = {
            name: ProbeResult(Outcome.OK, visited(kinds()[name], msgspec.to_builtins(result.data), visit))
            for name, result in facts.probes.items()
        }
        return msgspec.structs.replace(facts, probes=probes)

    return msgspec.structs.replace(bundle, hosts=tuple(map(filled, bundle.hosts)))


def declared() -> set[str]:
    """``Struct.field`` of every field of every fact, and of what lies in it."""
    found: set[str] = set()
    todo: list[Any] = list(kinds().values())
    for kind in todo:  # grows while it is walked
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            own = {f"{_place(kind)}.{field.name}" for field in msgspec.structs.fields(kind)}
            if not own <= found:
                todo += [type for name, type in get_type_hints(kind).items() if name != "PROBE"]
            found |= own
        todo += get_args(kind)
    return found


def told(bundle: Bundle) -> set[str]:
    """Of these the ones that say something in a bundle."""
    found: set[str] = set()

    def visit(kind: type[msgspec.Struct], data: dict[str, Any]) -> None:
        fields = msgspec.structs.fields(kind)
        found.update(f"{_place(kind)}.{field.name}" for field in fields if data.get(field.encode_name) is not None)

    for facts in bundle.hosts:
        for name, result in facts.probes.items():
            visited(kinds()[name], result.data, visit)
    return found


def _place(kind: type[msgspec.Struct]) -> str:
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


class Hole(NamedTuple):
    """A rule that passes on a host though this field is gone, and what all rules say."""

    field: str  # probe and pattern
    rule: str
    host: str
    missing: bool  # else null
    results: dict[str, engine.RuleResult]


class Fleet:
    """A healthy fleet, its rules, and which of them ask for which probe."""

    def __init__(self, bundle: Bundle, probes: tuple[str, ...] = ()) -> None:
        """``probes``: all others are left as they are; empty: none is."""
        self.sent = {facts.name: facts for facts in bundle.hosts}
        bundle = whole(bundle)
        self.bundle = bundle
        self.hosts = {facts.name: facts for facts in bundle.hosts}
        self.rules = [rule for rule in engine.all_rules() if rule.stage in bundle.plan.stages]
        self.base: dict[str, engine.RuleResult] = {}
        self.asked: dict[str, list[engine.Rule]] = {}  # probe -> rules
        for rule in self.rules:
            hosts = engine.reached(bundle)
            (self.base[rule.name],) = engine.run(bundle, (rule,), hosts)
            for probe in {kind.PROBE for host in hosts for kind in host._decoded if not probes or kind.PROBE in probes}:
                self.asked.setdefault(probe, []).append(rule)
        self._decided: dict[tuple[str, str, Path], set[str]] = {}
        self.known = {host.name: host for host in hosts}
        for rule in self.rules:
            list(engine.run(bundle, (rule,), tuple(self.known.values())))

    def patterns(self, probe: str, instances: int) -> dict[Pattern, list[tuple[str, Path]]]:
        """Every pattern of a probe's data -> the places of it that are tried."""
        found: dict[Pattern, list[tuple[str, Path]]] = {}
        for host in sorted(self.hosts, reverse=True)[-2:]:
            result = self.hosts[host].probes.get(probe)
            for path, pattern in walk(result.data) if result else ():
                found.setdefault(pattern, []).append((host, path))
        return {pattern: self._chosen(probe, kept, instances) for pattern, kept in found.items()}

    def _chosen(self, probe: str, places: list[tuple[str, Path]], count: int) -> list[tuple[str, Path]]:
        """Of many alike (GPUs, NVLinks) the last ones; of few also the first: a host's first address is another kind.

        What agents sent comes before what they left to the default.
        """
        places = [(host, path) for host, path in places if self._was_sent(probe, host, path)] or places
        telling = [(host, path) for host, path in places if at(self.hosts[host].probes[probe].data, path)] or places
        first = [telling[0]] if len(places) <= FEW else []
        return list(dict.fromkeys([*telling[-count:], *first]))

    def _was_sent(self, probe: str, host: str, path: Path) -> bool:
        try:
            at(self.sent[host].probes[probe].data, path)
        except (KeyError, IndexError, TypeError):
            return False
        return True

    def told(self, probe: str, data: Mapping[str, Any]) -> dict[str, engine.RuleResult]:
        """What the rules that ask for this probe say, with other data of it: host -> data."""
        new = {name: self._host(self.hosts[name], probe, one) for name, one in data.items()}
        hosts = tuple(new.get(name, host) for name, host in self.known.items())
        derived: dict[Any, Any] = {}
        results = {}
        for rule in self.asked[probe]:
            where = hosts if rule.compares else tuple(new.values())
            (results[rule.name],) = engine.run(self.bundle, (rule,), where, derived)
        return results

    def _host(self, facts: HostFacts, probe: str, data: Any) -> engine.Host:
        probes = {**facts.probes, probe: ProbeResult(Outcome.OK, data)}
        host = engine.Host(msgspec.structs.replace(facts, probes=probes))
        host._decoded = {kind: one for kind, one in self.known[facts.name]._decoded.items() if probe != kind.PROBE}
        return host

    def decided(self, probe: str, pattern: Pattern, host: str, path: Path) -> set[str]:
        """The rules that pass on this host, and would accuse somebody if this field told something else."""
        if (probe, host, path) in self._decided:
            return self._decided[probe, host, path]
        data = self.hosts[host].probes[probe].data
        found = self._decided[probe, host, path] = set()
        inside = at(data, path)
        for key in inside if isinstance(inside, dict) else ():
            found |= self.decided(probe, (*pattern, "*" if pattern[-1] in BY_NAME else str(key)), host, (*path, key))
        for value in others(at(data, path), probe, pattern):
            for name, result in self.told(probe, {host: changed(data, path, value)}).items():
                if host in self.base[name].passed and name not in found and self._accuses(name, result):
                    found.add(name)
        return found

    def _accuses(self, name: str, result: engine.RuleResult) -> bool:
        known = {item.id for item in self.base[name].findings}
        return any(
            item.severity is not Severity.INFO and item.id not in known and item.id != BROKEN
            for item in result.findings
        )

    def without(self, probe: str, host: str, path: Path) -> Iterator[tuple[bool, dict[str, engine.RuleResult]]]:
        """What is told where the field is missing (True) or null: on this host, and on all that have it."""
        for value in (..., None):
            if value is ... and isinstance(path[-1], int):
                continue  # an element that is not there is another list
            every = {}
            for name, facts in self.hosts.items():
                try:
                    at(facts.probes[probe].data, path)
                    every[name] = changed(facts.probes[probe].data, path, value)
                except (KeyError, IndexError, TypeError):
                    continue
            for data in ({host: every[host]}, every):
                yield value is ..., self.told(probe, data)

    def absurd(self) -> Iterator[Hole]:
        """Where a rule passes on a host though what decides it is nonsense, or breaks over it."""
        for probe in sorted(self.asked):
            for pattern, ((host, path), *_) in sorted(self.patterns(probe, 1).items()):
                data = self.hosts[host].probes[probe].data
                for value in nonsense(at(data, path)):
                    results = self.told(probe, {host: changed(data, path, value)})
                    found = {name for name, one in results.items() if any(f.id == BROKEN for f in one.findings)}
                    if value != HUGE and any(host in one.passed for one in results.values()):
                        decided = self.decided(probe, pattern, host, path)
                        found |= {name for name in decided if host in results[name].passed}
                    for name in found:
                        yield Hole(f"{probe}: {'.'.join(pattern)}", name, host, False, results)

    def holes(self, instances: int = 1) -> Iterator[Hole]:
        """Where a rule passes or is skipped on a host though what decides it is gone."""
        for probe in sorted(self.asked):
            for pattern, places in sorted(self.patterns(probe, instances).items()):
                for host, path in places:
                    if at(self.hosts[host].probes[probe].data, path) is None:
                        continue  # not told by a healthy host either
                    decided = self.decided(probe, pattern, host, path)
                    for missing, results in self.without(probe, host, path) if decided else ():
                        for name in decided:
                            if passes(results[name], host):
                                yield Hole(f"{probe}: {'.'.join(pattern)}", name, host, missing, results)


def passes(result: engine.RuleResult, host: str) -> bool:
    """The rule calls the host well, or has nothing to say of it."""
    return host in result.passed or host in result.skipped
