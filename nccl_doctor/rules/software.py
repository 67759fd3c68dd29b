"""Software: present, and fitting together on each host."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Driver, NcclCopy, Software, Torch
from nccl_doctor.findings.model import EnvAdvice, Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, Quote, SkipRule, host_rule
from nccl_doctor.rules.nvidia import NO_GPU


def numbers(version: str) -> tuple[int, ...]:
    """``570.86.15`` as (570, 86, 15): leading numbers only."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


@host_rule("software", "sw.torch-missing")
def torch_present(host: Host, plan: Plan) -> Iterator[Finding]:
    """torch is installed in the Python that was examined. Without it only the network can be judged."""
    software = host.need(Software)
    if software.torch is None:
        yield host.finding(
            "sw.torch-missing",
            Severity.INFO,
            "The Python that was examined has no torch",
            (f"no torch in {software.python.prefix}", software.python.executable),
            Fix("examine the job's own Python: --python /path/to/venv/bin/python, or --env-setup 'source ...'"),
        )


@host_rule("software", "sw.no-nccl-backend")
def cuda_build(host: Host, plan: Plan) -> Iterator[Finding]:
    """On a host with NVIDIA GPUs, torch is a CUDA build (and so has the NCCL backend)."""
    software = host.need(Software)
    if software.torch is None:
        raise SkipRule("no torch in this Python")
    if not software.has_gpu:
        raise SkipRule(NO_GPU)
    torch = software.torch
    if torch.cuda:
        return
    kind = f"ROCm {torch.hip}" if torch.hip else "CPU-only"
    yield host.finding(
        "sw.no-nccl-backend",
        Severity.FAIL,
        f"torch {torch.version} is a {kind} build on a host with {_gpus(software)}: it has no NCCL",
        [
            (f"torch {torch.version}, cuda = {torch.cuda or 'None'}", f"{torch.path}/version.py"),
            (f"NVIDIA GPUs at {', '.join(software.driver.pci_gpus[:8])}", "PCI bus")
            if software.driver.pci_gpus
            else (f"the driver serves {_gpus(software)}", "/proc/driver/nvidia, /dev"),
        ],
        Fix(
            "install a CUDA build into this Python (choose the command for your CUDA version on pytorch.org)",
            _pip_install(software, "--force-reinstall torch"),
        ),
        explains=("collectives",),
    )


def _pip_install(software: Software, what: str) -> str:
    return f"{shell_word(software.python.executable)} -m pip install {what}"


def _gpus(software: Software) -> str:
    count = len(software.driver.pci_gpus) or software.driver.gpus
    return "1 NVIDIA GPU" if count == 1 else f"{count} NVIDIA GPUs"


@host_rule("software", "gpu.driver.not-loaded", "gpu.driver.library-mismatch", "gpu.driver.too-old")
def driver(host: Host, plan: Plan) -> Iterator[Finding]:
    """The NVIDIA driver is loaded, agrees with its own libraries, and is new enough for torch's CUDA version.

    A CUDA runtime runs on any driver from the first one of its major version on (minor-version compatibility), or
    with the cuda-compat package on some older ones of data-centre GPUs.
    """
    software = host.need(Software)
    if not software.has_gpu:
        raise SkipRule(NO_GPU)
    found = software.driver
    # The gpu stage asks the driver itself, and names one that is not loaded or does not match its libraries.
    asked = "gpu" in plan.stages
    if not found.version and (asked or found.gpus):
        raise MissingFact("driver version", "/proc/driver/nvidia/version tells none")
    if not found.version:
        yield host.finding(
            "gpu.driver.not-loaded",
            Severity.FAIL,
            f"{_gpus(software)} on the PCI bus, but no NVIDIA driver is loaded",
            (f"GPUs at {', '.join(found.pci_gpus[:8])}; no /proc/driver/nvidia/version", "PCI bus"),
            Fix("try to load it, and see why it does not", "sudo modprobe nvidia; sudo dmesg | tail -n 20"),
            Fix("after a kernel upgrade: build it for this kernel", "sudo dkms autoinstall && sudo modprobe nvidia"),
            explains=("collectives",),
        )
        return
    if not asked:
        yield from _library_mismatch(host, software)
    yield from _too_old(host, software)


def _loaded(driver: Driver) -> tuple[str, str]:
    return driver.line or driver.version, "/proc/driver/nvidia/version"


def _library_mismatch(host: Host, software: Software) -> Iterator[Finding]:
    found = software.driver
    for name, library in sorted(found.libraries.items()):
        if library.version and library.version != found.version and "compat" not in library.path:
            yield host.finding(
                "gpu.driver.library-mismatch",
                Severity.FAIL,
                f'The loaded driver is {found.version}, {name} is {library.version}: "Driver/library version mismatch"',
                [_loaded(found), (f"{library.path} is version {library.version}", library.path)],
                Fix(
                    "an upgrade replaced the files under the running driver: reload it or reboot",
                    "sudo reboot",
                    risky=True,
                ),
                Fix("in a container: it brings its own libcuda; remove it, the runtime mounts the host's"),
                explains=("collectives",),
            )
            return


@functools.cache
def _oldest_drivers() -> dict[str, str]:
    return msgspec.convert(read_yaml(Path(__file__).parent / "cuda_driver.yaml"), dict[str, str])


def oldest_driver(cuda: str) -> str:
    """The oldest driver for a CUDA version (``12.8``); empty if the table does not know it."""
    rows = _oldest_drivers()
    return rows.get(cuda) or rows.get(".".join(cuda.split(".")[:2])) or rows.get(cuda.split(".")[0], "")


def _too_old(host: Host, software: Software) -> Iterator[Finding]:
    if software.torch is None or not software.torch.cuda:
        return
    cuda, found = software.torch.cuda, software.driver
    needed = oldest_driver(cuda)
    if not needed:
        raise MissingFact(f"oldest driver for CUDA {cuda}", "not in nccl-doctor's table")
    compat = next((item for item in found.libraries.values() if "compat" in item.path), None)
    have = max(numbers(found.version), numbers(compat.version) if compat else ())
    if have < numbers(needed):
        yield host.finding(
            "gpu.driver.too-old",
            Severity.FAIL,
            f"Driver {found.version} is too old for torch's CUDA {cuda}, which needs {needed} or newer",
            [_loaded(found), (f"cuda = {cuda!r}", f"{software.torch.path}/version.py")],
            Fix(f"install driver {needed.split('.')[0]} or newer and reboot the host", risky=True),
            Fix(f"or install a torch built for an older CUDA than {cuda.split('.')[0]}.0"),
            explains=("collectives",),
        )


@host_rule("software", "sw.library-conflict.shadowed", "sw.library-conflict.cuda", "sw.library-conflict.not-found")
def nccl_library(host: Host, plan: Plan) -> Iterator[Finding]:
    """The libnccl that torch loads is the one it was built with, or a newer one, and built for the same CUDA.

    LD_PRELOAD, and with RUNPATH also LD_LIBRARY_PATH, come before torch's own copy. An older library than torch was
    built with ends in "undefined symbol: nccl..."; two different copies on the hosts of one job end in a version
    mismatch.
    """
    software = host.need(Software)
    torch = software.torch
    if torch is None:
        raise SkipRule("no torch in this Python")
    if torch.nccl_link == "none":
        raise SkipRule("this torch has no CUDA part")
    if torch.nccl_link == "built-in":
        raise SkipRule("this torch has NCCL built in: no library can shadow it")
    winner = software.winner
    if winner is None:
        if torch.nccl_link == "unknown":
            raise MissingFact("libnccl", "libtorch_cuda.so could not be read")
        yield _not_found(host, software, torch)
        return
    yield from _shadowed(host, software, winner)
    yield from _wrong_cuda(host, software, winner, torch)
    if (wanted := software.torch_wants_nccl) and not numbers(wanted):
        raise MissingFact("NCCL that torch asks for", f"{wanted!r} is no version")
    if not (winner.version and winner.cuda):
        raise MissingFact(f"version of {winner.real_path}", "no version string in the file")


def _not_found(host: Host, software: Software, torch: Torch) -> Finding:
    others = [copy for copy in software.nccl if not copy.loadable]
    return host.finding(
        "sw.library-conflict.not-found",
        Severity.FAIL,
        "torch needs libnccl.so.2 and the loader finds none: import torch fails",
        [
            ("NEEDED libnccl.so.2", f"{torch.path}/lib/libtorch_cuda.so"),
            *((f"not searched: {copy.path} ({copy.version})", copy.path) for copy in others[:3]),
        ],
        _own_copy(software, "install the copy torch asks for"),
        explains=("collectives",),
    )


def _own_copy(software: Software, text: str) -> Fix:
    return Fix(text, _pip_install(software, f"--force-reinstall --no-deps {_package(software)}"))


def _package(software: Software) -> str:
    name = next((item for item in sorted(software.distributions) if item.startswith("nvidia-nccl-cu")), "")
    cuda = software.torch.cuda.split(".")[0] if software.torch else ""
    name = name or f"nvidia-nccl-cu{cuda or '12'}"
    return f"{name}=={software.torch_wants_nccl}" if software.torch_wants_nccl else name


def _shadowed(host: Host, software: Software, winner: NcclCopy) -> Iterator[Finding]:
    wanted, by = software.torch_wants_nccl, winner.found_by
    forced = by in ("LD_PRELOAD", "LD_LIBRARY_PATH")
    older = bool(wanted and winner.version and numbers(winner.version) < numbers(wanted))
    own = next((copy for copy in software.nccl if not copy.wins and "/nvidia/nccl/lib/" in copy.real_path), None)
    differs = own is not None and own.version != winner.version
    if not older and not (forced and differs):
        return
    proof: list[Quote] = [(f"{winner.path} is NCCL {winner.version or '?'}, found by {by}", winner.real_path)]
    if own is not None:
        proof.append((f"{own.path} is NCCL {own.version}, torch's own copy", own.real_path))
    if forced:
        proof.append((f"{by}={software.environment.get(by, '')}"[:300], "environment"))
    if wanted:
        proof.append((f"torch asks for nvidia-nccl == {wanted}", "torch's METADATA"))
    reason = f"torch asks for {wanted}" if older else f"torch's own copy is {own.version if own else '?'}"
    fix = Fix(f"take its directory out of {by} for the job", f"unset {by}")
    yield host.finding(
        "sw.library-conflict.shadowed",
        Severity.FAIL if older else Severity.WARN,
        f"torch would load NCCL {winner.version or '?'} from {winner.path} ({by}); {reason}",
        proof,
        fix if forced else _own_copy(software, "install the copy torch asks for"),
        env=(EnvAdvice(by, "", f"it puts {winner.path} before torch's own libnccl", unset=True),) if forced else (),
        explains=("collectives",),
    )


def _wrong_cuda(host: Host, software: Software, winner: NcclCopy, torch: Torch) -> Iterator[Finding]:
    if not winner.cuda or not torch.cuda or winner.cuda.split(".")[0] == torch.cuda.split(".")[0]:
        return
    yield host.finding(
        "sw.library-conflict.cuda",
        Severity.FAIL,
        f"torch is built for CUDA {torch.cuda}, the NCCL it loads for CUDA {winner.cuda}",
        [
            (f"NCCL version {winner.version}+cuda{winner.cuda}", winner.real_path),
            (f"cuda = {torch.cuda!r}", f"{torch.path}/version.py"),
        ],
        _own_copy(software, "install the NCCL of torch's CUDA version"),
        explains=("collectives",),
    )


@host_rule("software", "net.plugin.missing")
def network_plugin(host: Host, plan: Plan) -> Iterator[Finding]:
    """The network plugin that NCCL_NET_PLUGIN names is found. If it is not, NCCL silently uses its own transports."""
    software = host.need(Software)
    value = plan.env.get("NCCL_NET_PLUGIN", software.environment.get("NCCL_NET_PLUGIN", ""))
    for name in filter(None, value.split(",")):
        if name.lower() in ("none", "static_plugin") or "/" in name:
            continue
        wanted = {name, f"libnccl-net-{name}.so"}
        if not wanted & {plugin.name for plugin in software.plugins}:
            found = ", ".join(plugin.path for plugin in software.plugins) or "no libnccl-net*.so"
            pattern = shell_word(f"libnccl-net*{name}*")
            yield host.finding(
                "net.plugin.missing",
                Severity.FAIL,
                f"NCCL_NET_PLUGIN={value}, but no such plugin is found: NCCL falls back to its own transports",
                [(f"NCCL_NET_PLUGIN={value}", "environment"), (f"found: {found}", "LD_LIBRARY_PATH, ld.so.cache")],
                Fix("find it on this host", f"ldconfig -p | grep libnccl-net; find / -xdev -name {pattern}"),
                Fix("then add its directory to LD_LIBRARY_PATH, or install the plugin as on the other hosts"),
                explains=("collectives",),
            )
