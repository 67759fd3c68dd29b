"""The world of ranks: what each host offers, how many ranks it gets, over which backend, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.facts.model import Outcome, ProbeResult
from nccl_doctor.rules.units import size

# Of its own, that a rank takes before it does anything: 148 MB with torch 2.13 on a CPU, more with CUDA.
RANK_BYTES = 128 << 20


class Torch(msgspec.Struct, frozen=True):
    """The torch of a host's Python, found without importing it. ``cuda`` is empty for CPU builds."""

    torch: str = ""
    cuda: str = ""
    error: str = ""


class HcaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA device, from /sys/class/infiniband."""

    name: str
    port: int
    state: str = ""
    rate_gbps: float = 0.0

    @property
    def active(self) -> bool:
        """Whether the port can carry data."""
        return "ACTIVE" in self.state


class Prepared(msgspec.Struct, frozen=True):
    """What a host offers (probe ``bench-prepare``)."""

    host: str
    python: str
    torch: Torch
    gpus: tuple[str, ...] = ()
    gpus_unknown: str = ""  # why it is not known which of the host's GPUs ranks could have
    busy: tuple[str, ...] = ()  # processes on them
    busy_unknown: str = ""  # why it is not known who uses them
    hcas: tuple[HcaPort, ...] = ()
    nvlinks: int | None = None  # active links of the GPU that has the fewest; None: not known
    nvlink_gbs: float = 0.0  # of one link and direction, GB/s, as the driver says
    pcie: tuple[str, ...] = ()  # "generation, width" per GPU, at their best
    peermem: bool = False
    memory: int | None = None  # bytes that are free; None: not known
    addresses: dict[str, str] = {}
    name_addresses: tuple[str, ...] = ()
    route_source: str = ""
    port: int = 0
    port_free: bool = True

    @property
    def torch_trouble(self) -> str:
        """Why no rank can run here, or empty. Names the Python and how to choose another."""
        if self.torch.error:
            return f"{self.torch.error}; name the job's Python with --python"
        if not self.torch.torch:
            return f"no torch in {self.python}; name the Python of the training job with --python (or --env-setup)"
        return ""


class Share(msgspec.Struct, frozen=True):
    """Ranks of one host in a row: ``ranks`` of them, from ``first_rank`` on. A scheduler may give a host several."""

    name: str
    first_rank: int
    ranks: int
    python: str = ""


class World(msgspec.Struct, frozen=True):
    """Where every rank runs, over which backend and why that one, and where they meet."""

    backend: str
    backend_why: str
    shares: tuple[Share, ...]
    master: str
    master_addr: str
    master_port: int
    ranks_why: str = ""  # who said how many ranks a host gets

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(share.ranks for share in self.shares)

    @property
    def per_host(self) -> dict[str, int]:
        """Host -> number of its ranks, the host of rank 0 first."""
        found: dict[str, int] = {}
        for share in self.shares:
            found[share.name] = found.get(share.name, 0) + share.ranks
        return found


class CannotRun(Exception):
    """No world can be made of these hosts; the message says why and what to do."""


def read_prepared(result: ProbeResult) -> Prepared | str:
    """The typed answer, or why there is none."""
    if result.outcome is not Outcome.OK:
        return result.why
    try:
        return msgspec.convert(result.data, Prepared)
    except msgspec.ValidationError as error:
        return f"unreadable answer: {error}"


def place(
    prepared: Mapping[str, Prepared],
    plan: BenchPlan,
    master: str = "",
    reached_at: Mapping[str, str] | None = None,
    slots: Mapping[str, int] | None = None,
) -> World:
    """Place the ranks; raises :class:`CannotRun`. Hosts keep their order, but the master comes first.

    ``reached_at`` is the address the controller reached each host at: the last resort for the master's address.
    ``slots`` are the ranks that a hostfile gives to some hosts; the plan's own number goes before them.
    """
    slots = {} if plan.ranks_per_host else slots or {}
    names = list(prepared)
    if master in prepared:
        names.remove(master)
        names.insert(0, master)
    master = names[0]
    backend, why = choose_backend(prepared, plan.backend)
    shares, first = [], 0
    for name in names:
        gpus = len(prepared[name].gpus)
        ranks = plan.ranks_per_host or slots.get(name) or (gpus if backend == "nccl" else 1)
        if backend == "nccl" and ranks > gpus and not plan.same_gpu:
            why = "; --gpus-per-host goes before the host list's slots" if name in slots else ""
            raise CannotRun(f"{name} has {gpus} GPU(s), {ranks} ranks were asked for{why}")
        free = prepared[name].memory
        if free is not None and free < ranks * RANK_BYTES:
            need = f"{ranks} ranks need {size(ranks * RANK_BYTES)} or more, for torch alone"
            raise CannotRun(f"{need}, and {size(free)} are free on {name}")
        shares.append(Share(name, first, ranks, prepared[name].python))
        first += ranks
    chosen = prepared[master]
    if not chosen.port_free:
        raise CannotRun(f"port {chosen.port} is already in use on {master}; choose another with --master-port")
    address = "127.0.0.1" if len(names) == 1 else master_address(master, chosen, (reached_at or {}).get(master, ""))
    return World(backend, why, tuple(shares), master, address, chosen.port, _ranks_why(plan, backend, names, slots))


def _ranks_why(plan: BenchPlan, backend: str, names: list[str], slots: Mapping[str, int]) -> str:
    if plan.ranks_per_host:
        return "asked for"
    usual = "one per GPU" if backend == "nccl" else "one a host"
    given = sum(name in slots for name in names)
    if not given:
        return usual
    return "slots of the host list" + ("" if given == len(names) else f", else {usual}")


def choose_backend(prepared: Mapping[str, Prepared], wanted: str) -> tuple[str, str]:
    """The backend, and why: nccl where every host has GPUs and a CUDA torch, else gloo (unless one was asked for)."""
    without_gpu = [name for name, host in prepared.items() if not host.gpus]
    without_cuda = [name for name, host in prepared.items() if not host.torch.cuda]
    if wanted == "gloo":
        return "gloo", "asked for"
    if unknown := [name for name, host in prepared.items() if host.gpus_unknown]:
        why = prepared[unknown[0]].gpus_unknown
        raise CannotRun(
            f"which GPUs ranks could have is not known on {', '.join(unknown)}: {why}; --backend gloo does without them"
        )
    if wanted == "nccl":
        if without_gpu:
            raise CannotRun(f"nccl was asked for: no GPU on {', '.join(without_gpu)}")
        if without_cuda:
            raise CannotRun(f"nccl was asked for: a CPU build of torch on {', '.join(without_cuda)}")
        return "nccl", "asked for"
    if len(without_gpu) == len(prepared):
        return "gloo", "no host has a GPU"
    if without_gpu:
        return "gloo", f"no GPU on {', '.join(without_gpu)}"
    if without_cuda:
        return "gloo", f"a CPU build of torch on {', '.join(without_cuda)}"
    return "nccl", "every host has GPUs"


def master_address(name: str, host: Prepared, reached_at: str) -> str:
    """The address at which the other hosts find the store: what the master's own name resolves to if that is an
    address it has and not a loopback one; else the address it sends from; else the one we reached it at."""
    for address in host.name_addresses:
        if address in host.addresses and not _is_loopback(address):
            return address
    for address in (host.route_source, reached_at):
        if address and not _is_loopback(address):
            return address
    raise CannotRun(f"{name} has no address that other hosts could use; its own: {sorted(host.addresses)}")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
