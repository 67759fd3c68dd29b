"""Record this machine's hardware as a fixture: what the probes read, what the tools print, the files behind both.

Three files, each without serial numbers, UUIDs, GUIDs, addresses and the host's name:

- ``machine.ndb``: the bundle of ``check`` (NVML's answers call by call, sysfs, kernel log);
- ``tools.json``: every tool's output, as it was printed, with exit status;
- ``tree.tar.gz``: the files of /sys and /proc that the probes read; unpacked, it is a NCCL_DOCTOR_ROOT.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle

ROOT = os.environ.get("NCCL_DOCTOR_ROOT", "")  # where the probes read, too
FILE_LIMIT = 8192  # bytes of one file of the tree
TOOLS = (
    ("nvidia-smi",),
    ("nvidia-smi", "--version"),
    ("nvidia-smi", "-L"),
    ("nvidia-smi", "-q"),
    ("nvidia-smi", "-q", "-x"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "topo", "-mp"),
    ("nvidia-smi", "topo", "-p2p", "r"),
    ("nvidia-smi", "topo", "-p2p", "w"),
    ("nvidia-smi", "topo", "-p2p", "n"),
    ("nvidia-smi", "nvlink", "-s"),
    ("nvidia-smi", "nvlink", "-e"),
    ("nv-fabricmanager", "--version"),
    ("ibstat",),
    ("ibstatus",),
    ("ibv_devinfo", "-v"),
    ("show_gids",),
    ("lspci", "-nn"),
    ("lspci", "-tv"),
)
# Where probes look. Directories are walked without following links; links are kept as links.
PLACES = (
    "/sys/bus/pci/devices",
    "/sys/bus/pci/slots",
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/net",
    "/sys/kernel/iommu_groups",
    "/sys/devices/system/node",
    "/sys/module/nvidia",
    "/sys/module/nvidia_peermem",
    "/sys/class/dmi/id/sys_vendor",
    "/proc/driver/nvidia",
    "/proc/version",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/sys/kernel/osrelease",
    "/proc/uptime",
    "/proc/1/comm",
    "/proc/1/cgroup",
    "/proc/self/mountinfo",
)
_PCI_FILES = re.compile(
    r"^(vendor|device|class|numa_node|local_cpulist|(current|max)_link_(speed|width)|config|address)$"
)
_BOOT_OPTION = re.compile(rb"iommu|^(?:pci|numa|vfio)")  # what the topology probe takes of the command line
# What to replace -> by what, given how many names were replaced before it.
_SECRETS: tuple[tuple[re.Pattern[str], Callable[[str, int], str]], ...] = (
    (
        re.compile(r"\b(?:(?:GPU|MIG)-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
        lambda found, number: f"{found[:-36]}00000000-0000-0000-0000-{number:012d}",
    ),
    (re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"), lambda found, number: f"02:00:00:00:00:{number % 256:02x}"),
    (re.compile(r"\b0x[0-9a-f]{16}\b"), lambda found, number: f"0x{number:016x}"),
    (re.compile(r"\b[0-9a-f]{4}(?::[0-9a-f]{4}){3}\b"), lambda found, number: _guid(found, number)),
)


def _guid(found: str, number: int) -> str:
    """A GUID or half a GID: link-local and empty halves stay, of an IPv4 address its form."""
    if found.startswith(("fe80:", "0000:0000:0000:0000")):
        return found
    return f"0000:ffff:0a00:{number:04x}" if found.startswith("0000:ffff:") else f"0200:0000:0000:{number:04x}"


# nvidia-smi -q, its XML, our bundle, the driver's line in the kernel log; a chassis has letters in its number, too
_SERIAL = re.compile(
    r"[Ss]erial [Nn]umber\s*(?:: |is )\s*([0-9A-Z]{6,})|<\w*serial\w*>([0-9A-Z]{6,})<|\"serial\": ?\"([0-9A-Z]{6,})\""
)


class Hider:
    """Replaces what names this very machine; equal things get equal names everywhere."""

    def __init__(self, hosts: Iterable[str]) -> None:
        plain = ("localhost", "gpu", "host", "node")
        self.names = {name: "gpu01" for name in (*hosts, platform.node()) if len(name) > 2 and name not in plain}

    def learn(self, text: str) -> None:
        """Remember the serial numbers of this text."""
        for found in _SERIAL.finditer(text):
            serial = next(group for group in found.groups() if group)
            self.names.setdefault(serial, f"{1650000000000 + len(self.names)}")

    def hide(self, text: str) -> str:
        """The text without them."""
        for pattern, form in _SECRETS:
            text = pattern.sub(lambda found, form=form: self._name(found.group(), form), text)  # type: ignore[misc]
        for name in sorted(self.names, key=len, reverse=True):
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", self.names[name], text)
        return text

    def _name(self, found: str, form: Callable[[str, int], str]) -> str:
        if found not in self.names and found not in self.names.values():
            self.names[found] = form(found, len(self.names))
        return self.names.get(found, found)


def tools() -> dict[str, dict[str, object]]:
    """Command -> how it ended and what it printed; a tool that is not there is told so."""
    found: dict[str, dict[str, object]] = {}
    for argv in TOOLS:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=60, env=dict(os.environ, LC_ALL="C"))
        except (OSError, subprocess.TimeoutExpired) as error:
            found[" ".join(argv)] = {"error": f"{type(error).__name__}: {error}"}
            continue
        texts = {"out": done.stdout.decode("utf-8", "replace"), "err": done.stderr.decode("utf-8", "replace")}
        found[" ".join(argv)] = {"rc": done.returncode, **texts}
    return found


def files() -> Iterator[tuple[str, bytes | str]]:
    """(path, content), or (path, target) of a link: everything under the places that is small and readable."""
    links: set[str] = set()
    for place in (ROOT + place for place in PLACES):
        if os.path.isfile(place):
            yield from _file(place)
        for directory, names, plain in os.walk(place):
            for name in [*names, *plain]:
                path = os.path.join(directory, name)
                if os.path.islink(path):
                    yield path, os.readlink(path)
                    links.add(path)
                elif os.path.isfile(path):
                    yield from _file(path)
    for device in sorted(path for path in links if path.startswith(ROOT + "/sys/bus/pci/devices/")):
        yield from _device(os.path.realpath(device))
    for device in sorted(path for path in links if path.startswith(ROOT + "/sys/class/infiniband/")):
        for directory, _, plain in os.walk(os.path.realpath(device)):
            for name in plain:
                yield from _file(os.path.join(directory, name))


def _device(real: str) -> Iterator[tuple[str, bytes | str]]:
    """One PCI device's own files, links (driver, IOMMU group) and network interfaces."""
    for name in sorted(os.listdir(real)):
        path = os.path.join(real, name)
        if os.path.islink(path):
            yield path, os.readlink(path)
        elif _PCI_FILES.match(name):
            yield from _file(path)
    for name in sorted(os.listdir(os.path.join(real, "net"))) if os.path.isdir(os.path.join(real, "net")) else ():
        for leaf in ("mtu", "operstate", "carrier_changes"):
            yield from _file(os.path.join(real, "net", name, leaf))


def _file(path: str) -> Iterator[tuple[str, bytes | str]]:
    try:
        with open(path, "rb") as stream:
            content = stream.read(FILE_LIMIT)
    except OSError:
        return
    if path == ROOT + "/proc/cmdline":  # a small virtual machine is told its addresses and secrets there
        content = b" ".join(word for word in content.split() if _BOOT_OPTION.search(word)) + b"\n"
    yield path, content


def tree(hider: Hider) -> bytes:
    """The tar archive of :func:`files`."""
    target = io.BytesIO()
    seen: set[str] = set()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, content in files():
            if path in seen:
                continue
            seen.add(path)
            entry = tarfile.TarInfo(path[len(ROOT) :].lstrip("/"))
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
                continue
            if not path.endswith("/config"):
                content = hider.hide(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def _hidden(value: Any, hider: Hider) -> Any:
    """Every text in it without what names the machine; the names of fields stay, as a host may be called as one is."""
    if isinstance(value, dict):
        return {key if key.isidentifier() else hider.hide(key): _hidden(one, hider) for key, one in value.items()}
    if isinstance(value, list):
        return [_hidden(one, hider) for one in value]
    return hider.hide(value) if isinstance(value, str) else value


def record(bundle: Bundle, directory: Path) -> None:
    """Write the three files; the names of host, GPUs and cards are the same in all of them."""
    directory.mkdir(parents=True, exist_ok=True)
    hider, printed = Hider(host.name for host in bundle.hosts), tools()
    text = msgspec.json.encode(bundle).decode()
    for learned in (text, *(str(one.get("out", "")) for one in printed.values())):
        hider.learn(learned)
    clean = msgspec.json.decode(json.dumps(_hidden(json.loads(text), hider)), type=Bundle)
    bundles.write(clean, directory / "machine.ndb")
    (directory / "tools.json").write_text(
        json.dumps(
            {
                name: {key: hider.hide(part) if isinstance(part, str) else part for key, part in one.items()}
                for name, one in printed.items()
            },
            indent=1,
        )
        + "\n"
    )
    (directory / "tree.tar.gz").write_bytes(tree(hider))
