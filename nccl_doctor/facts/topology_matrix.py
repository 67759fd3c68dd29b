"""Parse ``nvidia-smi topo -m`` (also ``-mp`` and ``-p2p``) of any age, as printed or as pasted into a ticket.

The text is taken as people keep it: tabs or blanks, re-aligned by hand, ANSI codes, a shell prompt before it, ``#``,
``>``, a host or a time in front of every line, a table of ``|``, header names or cells run together, no header, no
legend, rows cut off at the end. What is not there is reported as truncated and never filled in: every link in the
result is one cell that was read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

LINE_LIMIT = 8192  # characters; the widest real line (8 GPUs, 17 NICs) has 250
TEXT_LIMIT = 1 << 20
DEVICE_LIMIT = 512

P2P_KINDS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\[[0-9;]{0,8}m")  # some pages drop the escape and keep the rest
_CELL = re.compile(r"NV[0-9]{1,3}|PIX|PXB|PSB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|DR|NS|U(?![A-Za-z])|X(?![a-z])")
_AFFINITY = (
    ("cpus", re.compile(r"CPU {0,8}Affinity")),
    ("numa", re.compile(r"NUMA {0,8}Affinity")),
    ("gpu_numa_id", re.compile(r"GPU {0,8}NUMA {0,8}ID")),
)
_NAME = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx[0-9]_(?:bond_)?[0-9]{1,3}|[A-Za-z][A-Za-z0-9_.\-]{0,40}")
_LEGEND = re.compile(r"\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#|OK|CNS|GNS|TNS|NS|DR|U)\s{1,8}= ")
_NIC_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s{0,8}([A-Za-z0-9_.\-]{1,40})\s*$")
_GPU = re.compile(r"GPU[0-9]{1,4}")
# What a launcher, a mail or a log puts before each line, seen at the first row. Digits differ from line to line.
_PREFIXED = re.compile(r"(.{0,119}?[^A-Za-z0-9_])GPU0[ \t]{1,40}X[ \t]")
# A page that lost its tabs: 'GPU0XNODESYS0-15'.
_GLUED = re.compile(rf"\s*((?:GPU|NIC|mlx[0-9]_(?:bond_)?)[0-9]{{1,4}})(?=(?:{_CELL.pattern}){{2}})")


class TopologyError(ValueError):
    """The text holds no topology matrix; the message says what was looked for."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of the matrix. None: there is no such column; an empty ``cpus``: the column is there, the cell is not."""

    name: str
    cpus: str | None = None
    numa: str | None = None
    gpu_numa_id: str | None = None


class Nic(msgspec.Struct, frozen=True):
    """One NIC. ``device`` is its verbs name (``mlx5_0``) from the legend or the column's own name; None if untold."""

    name: str
    device: str | None = None


class Link(msgspec.Struct, frozen=True):
    """One cell: what row ``a`` says of column ``b``. ``kind`` is PIX, PXB, PHB, NODE, SYS, NV#, or a P2P status."""

    a: str
    b: str
    kind: str


class Matrix(msgspec.Struct, frozen=True, dict=True):
    """A parsed matrix: a graph of GPUs and NICs. ``p2p`` holds the cells of a ``-p2p`` matrix in the same text.

    ``rows`` are the names whose rows are complete. ``truncated`` is set where rows, cells or legend lines that belong
    to the output are not in the text; ``notes`` say what.
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    links: tuple[Link, ...]
    truncated: bool
    rows: tuple[str, ...] = ()
    p2p: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = "nvidia-smi"  # or sysfs: rebuilt, see topology_tree

    def kinds(self) -> Mapping[tuple[str, str], str]:
        """(a, b) -> kind for both directions; where only one row was read, it answers for both."""
        return self._kinds

    @functools.cached_property
    def derived(self) -> dict[str, Any]:
        """What was computed from this matrix, by name, for those who compute it; no part of its value."""
        return {}

    @functools.cached_property
    def _kinds(self) -> Mapping[tuple[str, str], str]:
        found = {(link.b, link.a): link.kind for link in self.links}
        found.update({(link.a, link.b): link.kind for link in self.links})
        return MappingProxyType(found)


class _Section:
    """One matrix of the text while it is read: its header, then its rows."""

    def __init__(self, names: list[str] | None, affinity: list[str], starts: list[int]) -> None:
        self.names = names  # None: no header was there
        self.affinity = affinity
        self.starts = starts
        self.rows: dict[str, list[str]] = {}
        self.values: dict[str, dict[str, str]] = {}
        self.cut: list[str] = []

    def kinds(self) -> set[str]:
        return {cell for cells in self.rows.values() for cell in cells} - {"X"}


# The hosts of a fleet have few different matrices between them.
@functools.lru_cache(maxsize=64)
def parse(text: str) -> Matrix:
    """The matrix in the text; ``TopologyError`` if there is none. Linear in the length of the text."""
    lines = _unprefixed([_clean(line) for line in text[:TEXT_LIMIT].splitlines()])
    sections, legend, nic_legend = _read(lines)
    sections = [_with_names(section) for section in sections if section.rows]
    if not sections:
        raise TopologyError("no topology matrix: no line 'GPU0  X  ...' as `nvidia-smi topo -m` prints it")
    peer = [section for section in sections if section.kinds() and section.kinds() <= P2P_KINDS]
    main = next((section for section in sections if section not in peer), sections[0])
    notes = _notes(main, legend, nic_legend)
    if len(text) > TEXT_LIMIT:
        notes.append(f"only the first {TEXT_LIMIT} characters were read")
    names = main.names or []
    p2p = tuple(_links(peer[0])) if peer and peer[0] is not main else ()
    return Matrix(
        gpus=tuple(
            Gpu(name, *(_value(main, name, column) for column, _ in _AFFINITY))
            for name in names
            if _GPU.fullmatch(name)
        ),
        nics=tuple(
            Nic(name, nic_legend.get(name, None if name.startswith("NIC") else name))
            for name in names
            if not _GPU.fullmatch(name)
        ),
        links=tuple(_links(main)),
        truncated=bool(notes),
        rows=tuple(name for name in names if name in main.rows and name not in main.cut),
        p2p=p2p,
        notes=tuple(notes),
    )


def _clean(line: str) -> str:
    """The line without ANSI codes, comment, quote and table marks, cut at the limit."""
    line = _ANSI.sub("", line[:LINE_LIMIT]).rstrip()
    bare = line.lstrip()
    if bare.startswith("|"):
        return bare.replace("|", " ").rstrip()
    return " " + bare[1:] if bare.startswith(("#", ">")) else line


def _unprefixed(lines: list[str]) -> list[str]:
    """The lines without what stands before the first row, where a line begins with the same but for its digits."""
    prefix = next((found.group(1) for line in lines if (found := _PREFIXED.match(line))), "")
    if not prefix.strip():
        return lines
    shape = re.compile(re.sub("[0-9]+", "[0-9]+", re.escape(prefix.rstrip())))
    return [line[found.end() :] if (found := shape.match(line)) else line for line in lines]


def _read(lines: list[str]) -> tuple[list[_Section], set[str], dict[str, str]]:
    sections: list[_Section] = []
    legend: set[str] = set()
    nic_legend: dict[str, str] = {}
    for line in lines:
        if found := _GLUED.match(line):
            line = f"{found.group(1)} {line[found.end() :]}"
        words = line.split(None, 2)
        if not words:
            continue
        if found := _LEGEND.match(line):
            legend.add(found.group(1))
        elif found := _NIC_LEGEND.match(line):
            nic_legend[found.group(1)] = found.group(2)
        elif len(words) > 1 and _is_row(sections, words):
            if not sections:
                sections.append(_Section(None, [name for name, _ in _AFFINITY], []))
            _row(sections[-1], words[0], line[line.index(words[0]) + len(words[0]) :])
        elif _GPU.match(words[0]):
            known = sections[-1].names if sections else None
            if len(words) == 1 and known and words[0] in known and len(known) > 1:
                sections[-1].cut.append(words[0])
            elif header := _header(line):
                sections.append(header)
    return sections, legend, nic_legend


def _is_row(sections: list[_Section], words: list[str]) -> bool:
    """A device name followed by a cell. Names that are neither GPU# nor NIC# count only where a header has them."""
    if not _CELL.match(words[1]) or _NAME.fullmatch(words[0]) is None:
        return False
    known = sections[-1].names if sections else None
    return words[0] in known if known else _GPU.fullmatch(words[0]) is not None or words[0].startswith(("NIC", "mlx"))


def _header(line: str) -> _Section | None:
    affinity: list[str] = []
    starts: list[int] = []
    end = len(line)
    for name, pattern in _AFFINITY:
        if found := pattern.search(line):
            affinity.append(name)
            starts.append(found.start())
            end = min(end, found.start())
    names = [found.group() for word in line[:end].split() for found in _NAME.finditer(word)]
    if not names or len(names) > DEVICE_LIMIT or len(set(names)) != len(names):
        return None
    return _Section(names, affinity, starts)


def _row(section: _Section, name: str, rest: str) -> None:
    """Read one row's cells, as many as the header has; cells that run together are told apart by their words."""
    cells: list[str] = []
    position = 0
    limit = len(section.names) if section.names else DEVICE_LIMIT
    while len(cells) < limit:
        start = position
        while start < len(rest) and rest[start] in " \t":
            start += 1
        found = _CELL.match(rest, start)
        if not found or (found.group().startswith("NV") and re.match("[0-9,-]", rest[found.end() : found.end() + 1])):
            break  # or 'NV40-15': where the links end and the CPUs begin cannot be told
        cells.append(found.group())
        position = found.end()
    if section.names and (len(cells) < limit or cells[section.names.index(name)] != "X"):
        section.cut.append(name)
        own = section.names.index(name)
        if ("X" in cells and cells.index("X") != own) or (own < len(cells) and cells[own] != "X"):
            return  # shifted: no cell of this row can be trusted
        cells = cells[:-1] if position >= len(rest.rstrip()) else cells  # the last cell may be cut in itself
    if name in section.rows:
        return
    section.rows[name] = cells
    section.values[name] = _affinity(section, rest[position:], len(name) + position)


def _affinity(section: _Section, rest: str, offset: int) -> dict[str, str]:
    """CPU list, NUMA list and GPU NUMA id behind the cells.

    As many values as columns: in order. Fewer: by tab stops where the row has tabs (an empty cell is then seen), else
    by the header's positions. GPU NUMA ID is printed after two tabs, so it is the last value behind NUMA's.
    """
    columns = section.affinity
    values = rest.split()
    if not columns or not values or not rest[0].isspace():
        return {}  # nothing there, or glued to the last cell: where one value ends cannot be told
    if len(values) >= len(columns):
        return dict(zip(columns, values, strict=False))
    if "\t" in rest:
        stops = [stop.strip() for stop in rest.split("\t")[1:]]
        found = {column: stops[index] for index, column in enumerate(columns[:2]) if index < len(stops)}
        if "gpu_numa_id" in columns and (behind := [stop for stop in stops[2:] if stop]):
            found["gpu_numa_id"] = behind[-1]
        return found
    found = {}
    if len(section.starts) == len(columns):
        for value in re.finditer(r"\S+", rest):
            place = offset + value.start()
            nearest = min(range(len(columns)), key=lambda index: abs(section.starts[index] - place))
            found.setdefault(columns[nearest], value.group())
    return found


def _with_names(section: _Section) -> _Section:
    """Give a section without a header its names by count: as many GPUs as rows or NVLinks prove, NICs behind them."""
    if section.names is not None:
        return section
    width = max(len(cells) for cells in section.rows.values())
    gpu_rows = [int(name[3:]) for name in section.rows if _GPU.fullmatch(name)]
    linked = [column for cells in section.rows.values() for column, cell in enumerate(cells) if cell.startswith("NV")]
    gpus = min(width, 1 + max([*gpu_rows, *linked], default=width - 1))
    section.names = [f"GPU{index}" for index in range(gpus)] + [f"NIC{index}" for index in range(width - gpus)]
    for name, cells in list(section.rows.items()):
        fits = name in section.names and len(cells) == width and cells[section.names.index(name)] == "X"
        if not fits:
            section.cut.append(name)
            del section.rows[name]
    return section


def _value(section: _Section, name: str, column: str) -> str | None:
    if column not in section.affinity or name not in section.rows or name in section.cut:
        return None
    return section.values[name].get(column, "")


def _links(section: _Section) -> list[Link]:
    names = section.names or []
    return [
        Link(name, other, cell)
        for name in names
        for other, cell in zip(names, section.rows.get(name, ()), strict=False)
        if cell != "X"
    ]


def _folded(names: list[str]) -> str:
    """``GPU6, NIC0-NIC11``: runs of three and more of one kind are shortened."""
    runs: list[list[str]] = []
    for name in names:
        last = runs[-1][-1] if runs else ""
        follows = last[:3] == name[:3] and last[3:].isdecimal() and name[3:] == str(int(last[3:]) + 1)
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _notes(section: _Section, legend: set[str], nic_legend: dict[str, str]) -> list[str]:
    names = section.names or []
    notes = []
    absent = [name for name in names if name not in section.rows]
    if absent:
        notes.append(f"no row for {_folded(absent)}")
    if cut := [name for name in dict.fromkeys(section.cut) if name in section.rows]:
        notes.append(f"row cut short: {', '.join(cut)}")
    if not section.starts and section.affinity:
        notes.append("no header line: names are given by count")
    last = "U" if section.kinds() and section.kinds() <= P2P_KINDS else "PIX"
    if legend and last not in legend:
        notes.append("the legend is cut short")
    nics = [name for name in names if name.startswith("NIC")]
    if nic_legend and (unnamed := [name for name in nics if name not in nic_legend]):
        notes.append(f"the NIC legend does not name {', '.join(unnamed)}")
    return notes
