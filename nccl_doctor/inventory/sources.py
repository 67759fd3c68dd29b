"""Where hosts come from (file, standard input, -H, Slurm, this machine) and how a list of them is written back."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.inventory import ansible, lines, names, nodesets, slurm
from nccl_doctor.inventory.model import HostEntry, Inventory, InventoryError
from nccl_doctor.inventory.names import BadName

SIZE_LIMIT = 8 << 20  # bytes of a hostfile


def load(
    hosts_file: str | None,
    host_list: str | None,
    slurm_job: bool,
    environment: Mapping[str, str],
    stdin: BinaryIO,
) -> Inventory:
    """The hosts named by ``--hosts FILE`` (``-``: standard input), ``-H LIST`` or ``--slurm``; none: this machine.

    Raises :class:`InventoryError` before anything is connected to.
    """
    given = [name for name, value in (("--hosts", hosts_file), ("-H", host_list), ("--slurm", slurm_job)) if value]
    if len(given) > 1:
        raise InventoryError(" and ".join(given), None, "", "give only one of --hosts, -H and --slurm")
    if hosts_file is not None:
        source = "standard input" if hosts_file == "-" else hosts_file
        return parse(_read(hosts_file, stdin), source)
    if host_list is not None:
        return from_list(host_list)
    if slurm_job:
        return _finish(slurm.entries(environment), slurm.SOURCE, "slurm", [])
    return Inventory((HostEntry(socket.gethostname()),), (), "local")


def _read(hosts_file: str, stdin: BinaryIO) -> bytes:
    try:
        data = stdin.read(SIZE_LIMIT + 1) if hosts_file == "-" else _read_file(Path(hosts_file))
    except OSError as error:
        hint = "" if "/" in hosts_file else " (hosts themselves are given with -H)"
        raise InventoryError(hosts_file, None, "", f"cannot be read: {error.strerror or error}{hint}") from error
    if len(data) > SIZE_LIMIT:
        raise InventoryError(hosts_file, None, "", f"larger than {SIZE_LIMIT >> 20} MiB: no hostfile")
    return data


def _read_file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(SIZE_LIMIT + 1)


def parse(data: bytes, source: str) -> Inventory:
    """The hosts of a file's bytes, whatever its format; raises :class:`InventoryError`."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InventoryError(source, 1, "", "UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InventoryError(source, line, "", f"byte {error.start} is no UTF-8 text") from error
    rows = text.replace("\r\n", "\n").split("\n")
    for number, row in enumerate(rows, 1):
        if any(ord(char) < 32 and char != "\t" for char in row) or "\x7f" in row:
            raise InventoryError(source, number, row, "a control character; expected a text file of hosts")
    ansible.refuse_yaml(rows, source)
    notices: list[str] = []
    if ansible.looks_like(rows):
        entries, format = ansible.parse(rows, source), "ansible"
    else:
        entries, format, notices = lines.parse(rows, source)
    if not entries:
        raise InventoryError(source, None, "", "names no host; expected one host a line")
    return _finish(entries, source, format, notices)


def from_list(host_list: str, source: str = "-H") -> Inventory:
    """The hosts of ``-H node[01-04],gpu7,user@host:2222``; ``source`` names the place in :class:`InventoryError`."""
    entries: list[HostEntry] = []
    formats: set[str] = set()
    colons: set[str] = set()
    for piece in nodesets.split_commas(host_list):
        try:
            parsed = lines.parse_spec(piece.strip())
        except BadName as error:
            why = "expected commas between hosts, such as gpu01,gpu02" if len(piece.split()) > 1 else str(error)
            raise InventoryError(source, None, piece, why) from error
        entries += parsed.entries
        formats.add(parsed.format)
        colons.add(parsed.colon)
    colons.discard("")
    if len(colons) > 1:
        raise InventoryError(source, None, host_list, "host:N reads as slots and as a port; write ports as [host]:N")
    return _finish(entries, source, lines.choose(formats), lines.colon_notice("".join(colons)))


def _finish(entries: list[HostEntry], source: str, format: str, notices: list[str]) -> Inventory:
    merged, more = merge(entries, source)
    return Inventory(tuple(merged), (*notices, *more), format)


def merge(entries: Iterable[HostEntry], source: str) -> tuple[list[HostEntry], list[str]]:
    """Each host once. The same host said twice is a notice; said differently, an :class:`InventoryError`."""
    kept: dict[str, HostEntry] = {}
    repeated: dict[str, int] = {}
    for entry in entries:
        first = kept.setdefault(entry.name, entry)
        if first is entry:
            continue
        repeated[entry.name] = repeated.get(entry.name, 1) + 1
        merged = _merge_two(first, entry)
        if merged is None:
            where = f"line {first.line}" if first.line else "before"
            expected = (
                f"the same host as in {where}, with another user, port or number of slots; give it one line, or two "
                "names with Host blocks in your ssh config"
            )
            raise InventoryError(source, entry.line, names.spell(entry), expected)
        kept[entry.name] = merged
    if not repeated:
        return list(kept.values()), []
    merged_lines = counted(sum(repeated.values()) - len(repeated), "line")
    return list(kept.values()), [f"named more than once, counted once: {fold(repeated)} ({merged_lines} merged)"]


def _merge_two(first: HostEntry, second: HostEntry) -> HostEntry | None:
    """Both together, or None if they contradict each other. What one leaves open, the other may say."""
    changes: dict[str, object] = {}
    for field in ("user", "port", "slots", "address"):
        one, two = getattr(first, field), getattr(second, field)
        if one and two and one != two:
            return None
        changes[field] = one or two
    return msgspec.structs.replace(first, **changes)


def render(entries: Iterable[HostEntry], format: str) -> str:
    """The entries as a hostfile of that format (one of ``FORMATS``), ending in a newline; empty for none."""
    hosts = list(entries)
    if not hosts:
        return ""
    if format in ("nodeset", "slurm"):
        rows = _folded(hosts)
    elif format == "ansible":
        rows = ["[hosts]", *(_ansible_row(entry) for entry in hosts)]
    else:
        rows = [_row(entry, format) for entry in hosts]
    return "\n".join(rows) + "\n"


def _row(entry: HostEntry, format: str) -> str:
    if format == "mpich" and entry.slots and entry.port is None and not entry.user and _reads_as_slots(entry):
        return f"{names.spell(entry)}:{entry.slots}"
    slots = f" slots={entry.slots}" if entry.slots and format in ("openmpi", "mpich") else ""
    return names.spell(entry) + slots


def _reads_as_slots(entry: HostEntry) -> bool:
    assert entry.slots is not None
    return entry.slots < 1024 and entry.slots != 22 and not names.is_ipv6(entry.name)


def _folded(hosts: list[HostEntry]) -> list[str]:
    groups: dict[tuple[str, int | None], list[str]] = {}
    for entry in hosts:
        groups.setdefault((entry.user, entry.port), []).append(entry.name)
    rows: list[str] = []
    for (user, port), group in groups.items():
        if port is None and not any(names.is_ipv6(name) for name in group):
            folded = fold(group)
            rows.append(f"{user}@{folded}" if user else folded)
        else:
            rows += [names.spell(HostEntry(name, user, port)) for name in group]
    return rows


def _ansible_row(entry: HostEntry) -> str:
    pairs = (("ansible_host", entry.address), ("ansible_user", entry.user), ("ansible_port", entry.port))
    return " ".join([entry.name, *(f"{key}={value}" for key, value in pairs if value)])
