"""Each host's interfaces as NCCL and Gloo would see them, and what rules about them say in common."""

from __future__ import annotations

from nccl_doctor.env.hosts import version_of
from nccl_doctor.env.interface_advice import IFNAME, Attempt, Recommendation, Station, decide
from nccl_doctor.env.knowledge import nccl_release
from nccl_doctor.env.nccl_conf import Setting, effective
from nccl_doctor.env.socket_interface import Choice, gloo_interfaces, nccl_bootstrap, needs_resolver
from nccl_doctor.env.versions import Version, show
from nccl_doctor.facts.interfaces import Address, Interfaces
from nccl_doctor.facts.mesh import Link, Links, Names
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import EnvAdvice, Evidence, Fix, shell_word
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, facts_of
from nccl_doctor.rules.mesh_pairs import in_doubt, perhaps_limited

GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
ALONE = "one host: nothing leaves it"  # why rules on what peers reach are skipped


class View(Station, frozen=True, kw_only=True):
    """One host as NCCL would see it: its interfaces, the settings in force, and what is chosen.

    ``used`` are all addresses that peers would be given: with an RDMA device only the bootstrap's, otherwise every
    interface that NET/Socket opens. ``assumed``: the NCCL version is not known, the newest known one was taken.
    """

    host: str
    assumed: bool
    bootstrap: Choice
    used: tuple[Address, ...]
    gloo: Choice | None  # None: not known, because the host's own name was not resolved

    @property
    def nccl(self) -> str:
        """``NCCL 2.28.9``, or which version was assumed."""
        return f"NCCL {show(self.version)}" + (" (assumed)" if self.assumed else "")


def attempts(fleet: Fleet, required: bool = False) -> tuple[Attempt, ...]:
    """The connections between hosts that were really tried, once for each host and address: some port answered, or none.

    A connect in doubt is none. With ``required`` hosts without any, and what is in doubt, become unknown.
    """
    if required:
        in_doubt(fleet, fleet.every(Links))
    return fleet.once(_attempts)


def _attempts(hosts: tuple[Host, ...], plan: Plan) -> tuple[Attempt, ...]:
    every = facts_of(hosts, Links)
    doubtful = set(perhaps_limited(every))
    tried: dict[tuple[str, str, str], Link] = {}
    for source, links in sorted(every.items()):
        for link in links.links:
            place = (source, link.peer, link.address)
            if (source, link) not in doubtful and (place not in tried or link.outcome == "ok"):
                tried[place] = link
    return tuple(
        Attempt(
            source,
            peer,
            address,
            link.outcome == "ok",
            f"connect {address}:{link.port} ({peer}): {link.outcome}" + (f", {link.detail}" if link.detail else ""),
        )
        for (source, peer, address), link in tried.items()
    )


def release_of(host: Host, plan: Plan) -> str:
    """The NCCL release that the user named, else the one found on the host; empty if neither is known."""
    return plan.nccl_version or version_of(host.want(Software))


def nccl_version(host: Host, plan: Plan) -> tuple[Version, bool]:
    """The NCCL version to judge by, and whether it is only assumed: then it is the newest known."""
    release = release_of(host, plan)
    return nccl_release(release), not release


def view(host: Host, plan: Plan) -> View:
    """What NCCL would choose on this host. ``MissingFact`` where that hangs on a name that was not resolved here."""
    facts = host.need(Interfaces)
    version, assumed = nccl_version(host, plan)
    settings = effective(facts.environment, facts.conf_files, version, plan.env)
    values = {name: setting.value for name, setting in settings.items()}
    if needs_resolver(comm_id := values.get("NCCL_COMM_ID", "")):
        raise MissingFact("interface choice", f"NCCL_COMM_ID={comm_id}: the name was not resolved")
    system = host.want(System)
    rdma = system is not None and bool(system.rdma_devices)
    names = host.want(Names)
    return View(
        facts,
        version,
        settings,
        rdma,
        host=host.name,
        assumed=assumed,
        bootstrap=nccl_bootstrap(facts.addresses, values, version),
        used=Station(facts, version, settings, rdma).handed_out().addresses,
        gloo=gloo_interfaces(facts.addresses, gloo_setting(facts, plan).value, names.own.addresses if names else None),
    )


def gloo_setting(facts: Interfaces, plan: Plan) -> Setting:
    """GLOO_SOCKET_IFNAME as a job on this host would see it; empty where it is not set."""
    source = "job environment" if GLOO_IFNAME in plan.env else "environment"
    return Setting(GLOO_IFNAME, plan.env.get(GLOO_IFNAME, facts.environment.get(GLOO_IFNAME, "")), source)


def views(fleet: Fleet) -> dict[str, View]:
    """The view of every host; hosts without one become unknown."""
    return fleet.of_each(lambda host: host.once(view, fleet.plan))


def recommendation(fleet: Fleet) -> Recommendation:
    """What to do about NCCL_SOCKET_IFNAME on these hosts: the same answer as ``env recommend`` gives."""
    return fleet.once(_recommendation)


def _recommendation(hosts: tuple[Host, ...], plan: Plan) -> Recommendation:
    fleet = Fleet(hosts, plan)
    return decide(views(fleet), attempts(fleet))


def advice(fleet: Fleet) -> tuple[EnvAdvice, ...]:
    """What to set or to remove, for a finding; nothing where nothing is known to help."""
    found = recommendation(fleet).advice
    return (found,) if found else ()


def choice_evidence(item: View, address: Address) -> Evidence:
    """That NCCL takes this address on a host, and by which rule."""
    setting = item.settings.get(IFNAME)
    rule = item.bootstrap.rule
    by = f"{setting.place}: {setting.quote}".rstrip("\r") if rule == IFNAME and setting else rule
    return Evidence(
        f"{item.nccl} takes {address.name} {address.address}/{address.prefix} ({by})",
        "getifaddrs, in this order",
        host=item.host,
    )


def interface_list(here: View) -> Evidence:
    """What getifaddrs shows on a host, loopback left out."""
    entries = [
        f"{address.name} {address.address}/{address.prefix}" + ("" if address.running else " (down)")
        for address in here.facts.addresses
        if not address.loopback
    ]
    return Evidence("interfaces: " + (", ".join(entries[:12]) or "none but loopback"), "getifaddrs", host=here.host)


def quote(setting: Setting, host: str) -> Evidence:
    """A setting as it stands where it is set."""
    return Evidence(setting.quote.rstrip("\r"), setting.source, setting.line or None, host)


def remove(setting: Setting, host: str) -> tuple[Fix, ...]:
    """How to take a setting away where it is set."""
    if setting.line:
        command = f"sudo sed -i '{setting.line}s/^/#/' {shell_word(setting.source)}"
        return (Fix(f"remove line {setting.line}", command, host),)
    if setting.source == "job environment":
        return (Fix("take it out of the command line given to nccl-doctor", f"unset {setting.name}"),)
    files = "/etc/environment /etc/profile /etc/profile.d/* ~/.bashrc ~/.profile ~/.bash_profile"
    return (Fix("find what sets it at login, and take it out there", f"grep -ns {setting.name} {files}", host),)


def unset(setting: Setting, reason: str) -> tuple[EnvAdvice, ...]:
    """The advice to unset it, where it stands in no file."""
    return () if setting.line else (EnvAdvice(setting.name, "", reason, unset=True),)
