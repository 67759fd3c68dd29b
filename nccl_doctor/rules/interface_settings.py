"""NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: do they name interfaces that are there, and what their author meant?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.env.interface_advice import IFNAME
from nccl_doctor.env.nccl_conf import Setting
from nccl_doctor.env.socket_interface import Filter, parse_filter
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, fleet_rule, host_rule
from nccl_doctor.rules.interface_view import (
    ALONE,
    GLOO_IFNAME,
    View,
    gloo_setting,
    interface_list,
    quote,
    remove,
    unset,
    view,
    views,
)


@host_rule("interfaces", "net.wrong-interface.no-match")
def interface_setting(host: Host, plan: Plan) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches an interface that has an address. If it does not, NCCL fails: there is no fallback.

    It is a list of prefixes, or with ``=`` of exact names; blanks and quotes are part of the names, case counts.
    """
    here = host.once(view, plan)
    setting = here.settings.get(IFNAME)
    if setting is None or "NCCL_COMM_ID" in here.settings or not here.bootstrap.failure:
        return
    wanted = parse_filter(setting.value, here.version)
    assert wanted is not None
    reason = _why_no_match(wanted, here)
    yield finding(
        "net.wrong-interface.no-match",
        Severity.FAIL,
        f"{IFNAME}={setting.value} matches no usable interface: {reason}",
        (quote(setting, host.name), interface_list(here)),
        hosts=(host.name,),
        fixes=remove(setting, host.name),
        env=unset(setting, "it matches no interface"),
        explains=("collectives",),
    )


def _why_no_match(wanted: Filter, here: View) -> str:
    names = list(dict.fromkeys(address.name for address in here.facts.addresses))
    devices = {device.name for device in here.facts.devices}
    if wanted.exclude:
        return "the exclude list leaves nothing"
    for entry in wanted.names:
        cleaned = entry.strip().strip("\"'").split("#")[0].strip()
        if cleaned != entry and any(name.startswith(cleaned) for name in names):
            return f"blanks, quotes and comments are part of the name; {cleaned!r} exists"
        if entry.lower() in (name.lower() for name in names) and entry not in names:
            return "upper and lower case differ from the interface's name"
        down = [
            address.name
            for address in here.facts.addresses
            if not address.running and (address.name == entry or (not wanted.exact and address.name.startswith(entry)))
        ]
        if down:
            return f"{down[0]} is down (NCCL 2.28.3 and newer skip it)"
        if entry in devices and entry not in names:
            return f"{entry} has no address"
        if wanted.exact and any(name.startswith(entry) for name in names):
            return f"with '=' the whole name must match, and there is no {entry!r}"
    return "no such interface on this host"


@host_rule("interfaces", "net.wrong-interface.gloo-no-match")
def gloo_names(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every name in GLOO_SOCKET_IFNAME is exactly the name of an interface with an address; otherwise Gloo raises.

    Unlike NCCL_SOCKET_IFNAME it knows neither prefixes nor ``^`` nor ``=``.
    """
    facts = host.need(Interfaces)
    setting = gloo_setting(facts, plan)
    if len(setting.value) < 2:
        return
    names = {address.name for address in facts.addresses}
    entries = setting.value.removesuffix(",").split(",")
    if missing := [entry for entry in entries if entry not in names]:
        syntax = " ('^', '=' and prefixes work in NCCL_SOCKET_IFNAME only)" if missing[0][:1] in ("^", "=") else ""
        yield finding(
            "net.wrong-interface.gloo-no-match",
            Severity.FAIL,
            f"{setting.quote}: no interface is called {missing[0]!r}{syntax}",
            (
                quote(setting, host.name),
                Evidence(f"interfaces with an address: {', '.join(sorted(names))}", "getifaddrs", host=host.name),
            ),
            hosts=(host.name,),
            fixes=remove(setting, host.name),
            env=unset(setting, "it names no interface"),
            explains=("collectives",),
        )


@fleet_rule("interfaces", "net.wrong-interface.gloo-loopback")
def gloo_told_loopback(fleet: Fleet) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME does not name the loopback interface on one of several hosts.

    Of two peers the one with the greater address connects: 127.0.0.1 connects to a peer in 10.0.0.0/8, which works, but
    a peer above it (172.16/12, 192.168/16) is told to connect to 127.0.0.1, which is itself.
    """
    fleet.need_several(ALONE)
    seen = views(fleet)
    for item in seen.values():
        if item.gloo is None or item.gloo.rule != GLOO_IFNAME or not item.gloo.addresses:
            continue
        told = item.gloo.addresses[0]
        if not told.loopback:
            continue
        peers = [
            peer.gloo.addresses[0] for peer in seen.values() if peer is not item and peer.gloo and peer.gloo.addresses
        ]
        misled = any(peer.family != told.family or peer.interface.ip > told.interface.ip for peer in peers)  # type: ignore[operator]
        setting = gloo_setting(item.facts, fleet.plan)
        lower = "; it works only because their addresses are lower, so that they need not connect to it"
        yield finding(
            "net.wrong-interface.gloo-loopback",
            Severity.FAIL if misled else Severity.WARN,
            f"{setting.quote} makes Gloo hand {told.address} to its peers" + ("" if misled else lower),
            (quote(setting, item.host), interface_list(item)),
            hosts=(item.host,),
            fixes=remove(setting, item.host),
            env=unset(setting, "it names the loopback interface"),
            explains=("collectives",),
        )


@host_rule("interfaces")
def configuration_files(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every nccl.conf that NCCL would read can be read: what stands in it is judged with the other variables."""
    for file in host.need(Interfaces).conf_files:
        if file.outcome == "not-permitted":
            raise MissingFact(
                f"settings in {file.path}",
                "not permitted to read it (NCCL, run by this user, would not read it either)",
            )
    return iter(())


@host_rule("interfaces", "net.wrong-interface.ifname-syntax", "net.wrong-interface.prefix")
def interface_syntax(host: Host, plan: Plan) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME means what its author meant: no blanks, ``^`` and ``=`` only in front, no prefix too wide."""
    here = host.once(view, plan)
    setting = here.settings.get(IFNAME)
    if setting is None or here.bootstrap.failure:
        return
    wanted = parse_filter(setting.value, here.version)
    if wanted is None:
        if setting.value:
            yield _syntax(setting, host.name, "a single character is ignored: NCCL chooses by itself")
        return
    for entry in wanted.names:
        if entry != entry.strip() or entry[:1] in ("^", "=", '"', "'"):
            yield _syntax(
                setting, host.name, f"{entry!r} is taken literally ('^' and '=' count only in front of the list)"
            )
            return
    yield from _too_wide(wanted, setting, here)


def _syntax(setting: Setting, host: str, why: str) -> Finding:
    cleaned = ",".join(part.strip().strip("\"'").lstrip("^=") for part in setting.value.lstrip("^=").split(","))
    lead = setting.value[: len(setting.value) - len(setting.value.lstrip("^="))]
    return finding(
        "net.wrong-interface.ifname-syntax",
        Severity.WARN,
        f"{IFNAME}={setting.value!r}: {why}",
        quote(setting, host),
        hosts=(host,),
        fixes=(Fix(f"write it as {IFNAME}={lead}{cleaned}", host=host),) if len(cleaned) > 1 else remove(setting, host),
    )


def _too_wide(wanted: Filter, setting: Setting, here: View) -> Iterator[Finding]:
    if wanted.exact or wanted.exclude:
        return
    names = [address.name for address in here.used]
    exact = [name for name in names if name in wanted.names]
    extra = [name for name in names if name not in wanted.names]
    if not exact or not extra:
        return  # "eth" or "ib" was meant as a prefix
    yield finding(
        "net.wrong-interface.prefix",
        Severity.WARN,
        f"{IFNAME}={setting.value} is a prefix: besides {exact[0]} it takes {', '.join(extra)}",
        (quote(setting, here.host), interface_list(here)),
        hosts=(here.host,),
        fixes=(Fix(f"for the exact name: {IFNAME}==" + ",".join(wanted.names)),),
        env=(EnvAdvice(IFNAME, "=" + ",".join(wanted.names), "an exact match, not a prefix", versions=">=2.5.6"),),
    )
