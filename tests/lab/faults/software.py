"""Faults of installed software and its settings: another torch or NCCL on one host, a wrong NCCL variable."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ..machine import LabError
from .base import Fault


@dataclass
class SitePackagesFault(Fault):
    """Common part: the host sees a changed copy of site-packages (an overlay in its own mount namespace)."""

    def site_packages(self) -> str:
        """The directory in which the host's python3 looks for packages."""
        return self.host.run(
            [self.host.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True
        ).stdout.strip()

    def overlay(self) -> str:
        """Mount the overlay (its changes in memory); from now on the host may write there, and only it sees it."""
        site = self.site_packages()
        stage = self.host.directory / "overlay"
        self.memory.update(site=site)
        self.inside(
            f"mkdir -p {stage}\nmount -t tmpfs -o size=64m tmpfs {stage}\nmkdir {stage}/upper {stage}/work\n"
            f"mount -t overlay -o lowerdir={shlex.quote(site)},upperdir={stage}/upper,workdir={stage}/work "
            f"overlay {shlex.quote(site)}"
        )
        return site

    def undo(self) -> None:
        super().undo()
        if "site" in self.memory:
            stage = self.host.directory / "overlay"
            site = shlex.quote(self.memory.pop("site"))
            self.inside(f"umount --lazy {site} || true\numount --lazy {stage} || true\nrmdir {stage} || true")


@dataclass
class OtherTorch(SitePackagesFault):
    """The host has another torch: its dist-info and torch/version.py say ``version``, the rest is unchanged."""

    name = "other-torch"
    version: str = "2.6.0"

    def apply(self) -> None:
        site = self.overlay()
        found = self.inside(f"ls -d {shlex.quote(site)}/torch-*.dist-info").split()
        if len(found) != 1:
            raise LabError(f"{self.host.name}: torch is not installed in {site}")
        old = Path(found[0]).name.removeprefix("torch-").removesuffix(".dist-info")
        new = f"{self.version}+{old.partition('+')[2]}" if "+" in old else self.version
        self.inside(
            f"cd {shlex.quote(site)}\n"
            f"mv torch-{old}.dist-info torch-{new}.dist-info\n"
            f"sed -i 's/^Version: .*/Version: {new}/' torch-{new}.dist-info/METADATA\n"
            f"sed -i 's/{old}/{new}/g' torch/version.py\n"
            "rm -rf torch/__pycache__/version.*"
        )


@dataclass
class OtherNccl(SitePackagesFault):
    """The host has NCCL ``version``, and all others have ``elsewhere``, as the wheel nvidia-nccl-cu12 installs it.

    All hosts get the wheel's metadata, a small libnccl that carries the version (``ncclGetVersion`` and the string that
    NCCL prints), and beside torch a libtorch_cuda that needs it, as a torch built for CUDA has.
    """

    name = "other-nccl"
    programs = {"cc": "gcc"}  # noqa: RUF012
    version: str = "2.26.2"
    elsewhere: str = "2.28.9"

    def apply(self) -> None:
        others = [self.lab.host(name) for name in self.lab.hostnames if name != self.host.name]
        children = self.memory.setdefault("children", [])
        for host, version in [(self.host, self.version), *((other, self.elsewhere) for other in others)]:
            installed = InstalledNccl(self.lab, host, version=version)
            children.append({"host": host.name, "memory": installed.memory})
            installed.apply()

    def undo(self) -> None:
        for child in self.memory.pop("children", []):
            InstalledNccl(self.lab, self.lab.host(child["host"]), memory=child["memory"]).undo()


@dataclass
class InstalledNccl(SitePackagesFault):
    """The host has the wheel nvidia-nccl-cu12 in ``version``. A part of other faults, and not a fault by itself."""

    version: str = "2.28.9"

    def apply(self) -> None:
        site = Path(self.overlay())
        info = site / f"nvidia_nccl_cu12-{self.version}.dist-info"
        library = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        metadata = f"Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: {self.version}\n"
        self.inside(
            f"rm -rf {site}/nvidia_nccl_cu1*.dist-info {site}/nvidia/nccl\n"
            f"mkdir -p {info} {library.parent}\n"
            f"printf %s {shlex.quote(metadata)} > {info}/METADATA\n"
            f"printf 'nvidia/nccl/lib/libnccl.so.2,,\\n' > {info}/RECORD\n"
            f"printf 'pip\\n' > {info}/INSTALLER\n"
        )
        major, minor, patch = (int(part) for part in self.version.split("."))
        self._compile(
            f'const char nccl_banner[] = "NCCL version {self.version}+cuda12.9";\n'
            f"int ncclGetVersion(int *version) {{ *version = {major * 10000 + minor * 100 + patch}; return 0; }}\n",
            f"-Wl,-soname,libnccl.so.2 -o {library}",
        )
        self._compile(
            "extern int ncclGetVersion(int *);\nint torch_nccl(int *version) { return ncclGetVersion(version); }\n",
            f"{library} -Wl,--disable-new-dtags -Wl,-rpath,'$ORIGIN/../../nvidia/nccl/lib' "
            f"-o {site}/torch/lib/libtorch_cuda.so",
        )

    def _compile(self, source: str, options: str) -> None:
        self.inside(
            f"printf %s {shlex.quote(source)} > /tmp/source.c\n"
            f"cc -shared -fPIC -nostdlib /tmp/source.c {options}\nrm /tmp/source.c"
        )


@dataclass
class WrongNcclConf(Fault):
    """The host's /etc/nccl.conf names an interface that does not exist."""

    name = "wrong-nccl-conf"
    line: str = "NCCL_SOCKET_IFNAME=eno1"

    def apply(self) -> None:
        self.write(self.host.etc / "nccl.conf", f"# from the old cluster\n{self.line}\n")


@dataclass
class WrongEnvironment(Fault):
    """Logins on the host have an NCCL variable that names an interface that does not exist."""

    name = "wrong-environment"
    variable: str = "NCCL_SOCKET_IFNAME"
    value: str = "eno1"

    def apply(self) -> None:
        self.set_environment(**{self.variable: self.value})

    def undo(self) -> None:
        self.restore_settings()
