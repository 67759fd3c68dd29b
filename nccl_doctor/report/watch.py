"""A watch as people see it: the table while it goes on, events as they come, and the answer at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nccl_doctor.collect.watch_folds import GpuFold
from nccl_doctor.collect.watch_series import HostSeries
from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.watch import Event, Gap, GpuSeries, Level, Watch
from nccl_doctor.facts.watch_samples import GpuSample
from nccl_doctor.report import console as report_console
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import LiveDisplay, print_again, print_hanging, print_labelled
from nccl_doctor.rules.nvidia import THROTTLE_MASK
from nccl_doctor.rules.units import duration
from nccl_doctor.rules.watch import Answer

SUMMARY_SAMPLES = 12  # from one summary line to the next, where there is no terminal
EVENTS_SHOWN = 8
_COLUMNS = ("host", "GPU", "use%", "C", "W", "MHz", "mem%", "CPU%", "freeGiB", "Gb/s", "ranks", "")
_TOLD = ("utilization_percent", "temperature_c", "power_w", "clock_sm_mhz")
_REMARK = 12  # columns that a name leaves to the remark
_SHORT = ((0x40, "HOT"), (0x20, "HOT (driver)"), (0x80, "POWER BRAKE"), (0x08, "SLOWED"))
_SEVERE = {
    **dict.fromkeys(("killed", "rank-ended", "rank-stopped", "silent", "gpu-lost"), "bold red"),
    **dict.fromkeys(("throttle", "link", "gpus"), "yellow"),
}


class Row(NamedTuple):
    """One line of the table: cells in the order of the columns, and how much trouble it is in (0: none)."""

    cells: tuple[str, ...]
    trouble: int = 0


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _row(
    name: str,
    gpu: int | None,
    told: Sequence[float | None],
    memory: float | None,
    own: Sequence[str],
    remark: str,
    trouble: int,
) -> Row:
    """``told``: utilisation, temperature, power and clock of this GPU; ``own``: the host's own cells, in its first line."""
    index = "-" if gpu is None else str(gpu)
    cells = (visible(name), index, *map(_number, told), _share(memory), *(own or [""] * 4), remark)
    return Row(cells, trouble)


def live_rows(hosts: Sequence[HostSeries], verbose: bool) -> list[Row]:
    """The hosts as they are now, one line each with its worst GPU: lost, throttled, or the hottest. ``verbose``: a line a GPU."""
    rows: list[Row] = []
    for host in hosts:
        if host.silence.now or host.seen_s is None:
            silent = "NOT REACHED" if host.seen_s is None else f"SILENT since {host.seen_s:.0f} s"
            remark, trouble = (silent, 2) if host.silence.now else ("...", 0)
            rows.append(Row((visible(host.name), *["-"] * 10, remark), trouble))
            continue
        gpus = sorted(host.gpus.values(), key=lambda gpu: gpu.index)
        if not verbose:
            gpus = sorted(gpus, key=_worst_first)[:1]
        alive = sum(rank.ended_s is None for rank in host.ranks.values())
        own = _host_cells(
            host.cpu.last, host.memory.get("MemAvailable"),
            [(nic.received.last, nic.sent.last) for nic in host.nics.values()], alive, len(host.ranks),
        )  # fmt: skip
        blind = "GPUs SILENT" if host.gpus_silence.now else ""
        if not gpus:
            rows.append(_row(host.name, None, [None] * len(_TOLD), None, own, blind, 2 if blind else 0))
        for gpu in gpus:
            now = gpu.now
            numbers = [getattr(now, name, None) for name in _TOLD]
            lost = blind or ("GPU LOST" if gpu.silence.now else "")
            remark = lost or ", ".join(word for bit, word in _SHORT if _reasons(now) & bit)
            trouble = 2 if lost else int(bool(remark))
            rows.append(_row(host.name, gpu.index, numbers, now.memory_share if now else None, own, remark, trouble))
            own = []
    return rows


def _worst_first(gpu: GpuFold) -> tuple[bool, int, float]:
    """A lost GPU, then the one that is throttled for most reasons, then the hottest."""
    heat = gpu.now.temperature_c if gpu.now else None
    return gpu.silence.now is None, -_reasons(gpu.now).bit_count(), -(heat or 0)


def _reasons(told: GpuSample | None) -> int:
    return (told.throttle_reasons or 0) & THROTTLE_MASK if told else 0


def _host_cells(
    cpu: float | None, free: float | None, nics: Iterable[tuple[float | None, float | None]], alive: int, ranks: int
) -> list[str]:
    """CPU, free memory, what the busiest interface moves in its busier direction, ranks."""
    rates = [rate for pair in nics for rate in pair if rate is not None]
    net = _number(8 * max(rates) / 1e9, 2) if rates else "-"
    free_gib = _number(None if free is None else free / (1 << 30), 1)
    return [_number(cpu), free_gib, net, f"{alive}" if ranks == alive else f"{alive} of {ranks}"]


def _mean(level: Level | None) -> float | None:
    return level.mean if level else None


def _high(level: Level | None) -> float | None:
    return level.high if level else None


def whole_rows(hosts: Mapping[str, Watch], verbose: bool) -> list[Row]:
    """The hosts over the whole watch: means, but the highest temperature, the fullest GPU and the least free memory."""
    rows = []
    for name, watch in hosts.items():
        gpus = sorted(watch.gpus, key=lambda gpu: gpu.index)
        if not verbose:
            gpus = sorted(gpus, key=lambda gpu: (not gpu.gaps, -_throttled(gpu), -(_high(gpu.temperature_c) or 0)))[:1]
        own = _host_cells(
            _mean(watch.cpu_percent), min((amount for _, amount in watch.memory_available_bytes), default=None),
            [(_mean(nic.received_bytes_per_s), _mean(nic.sent_bytes_per_s)) for nic in watch.nics],
            sum(rank.ended_s is None for rank in watch.ranks), len(watch.ranks),
        )  # fmt: skip
        silent = _lasted("silent", watch.gaps)
        if not gpus:
            rows.append(_row(name, None, [None] * len(_TOLD), None, own, silent, 2 if silent else 0))
        for gpu in gpus:
            share, lost = _throttled(gpu), _lasted("lost", gpu.gaps)
            words = (silent if own else "", lost, f"throttled {share * 100:.0f} %" if share else "")
            remark = "; ".join(word for word in words if word)
            told = [
                _mean(gpu.utilization_percent),
                _high(gpu.temperature_c),
                _mean(gpu.power_w),
                _mean(gpu.clock_sm_mhz),
            ]
            trouble = 2 if silent or lost else int(bool(share))
            rows.append(_row(name, gpu.index, told, _high(gpu.memory_share), own, remark, trouble))
            own = []
    return rows


def _lasted(word: str, gaps: Sequence[Gap]) -> str:
    return f"{word} {duration(sum(gap.to_s - gap.from_s for gap in gaps))}" if gaps else ""


def _throttled(gpu: GpuSeries) -> float:
    """The largest share of its busy time for which one reason held it down."""
    counts = [count for bit, count in gpu.throttled.items() if int(bit) & THROTTLE_MASK]
    return max(counts) / gpu.throttle_known if counts and gpu.throttle_known else 0.0


def table(rows: Sequence[Row], width: int, room: int | None = None) -> Text:
    """The table, as wide as there is ``width``: names and remarks are cut, a number never is; columns go as a whole, first
    those of which no line tells anything (hosts without GPUs).

    Where there is ``room`` for fewer lines, those in trouble come first and the rest is counted.
    """
    shown = list(rows)
    if room is not None and len(rows) > room:
        shown = sorted(rows, key=lambda row: -row.trouble)[: max(1, room - 1)]
    telling = [number for number in range(1, len(_COLUMNS) - 1) if any(row.cells[number].strip("-") for row in rows)]
    lines = [[line[number] for number in (0, *telling, -1)] for line in (_COLUMNS, *(row.cells for row in shown))]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    widths[0] = max(
        len(_COLUMNS[0]), min(widths[0], width - sum(widths[1:-1]) - len(widths) - min(widths[-1], _REMARK))
    )
    kept = [column for column in range(len(widths)) if sum(widths[: column + 1]) + column <= width]
    left = width - sum(widths[column] for column in kept) - len(kept)
    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        cells = [
            set_cell_size(line[0], widths[0])
            if cell_len(line[0]) <= widths[0]
            else f"{set_cell_size(line[0], widths[0] - 1)}…",
            *(f"{line[column]:>{widths[column]}}" for column in kept if 0 < column < len(widths) - 1),
        ]
        remark = line[-1]
        if len(widths) - 1 in kept:
            cells.append(remark)
        elif remark and left > 1:
            cells.append(remark if cell_len(remark) <= left else f"{set_cell_size(remark, left - 1)}…")
        style = "dim" if number == 0 else ("", "yellow", "bold red")[shown[number - 1].trouble]
        text.append(" ".join(cells).rstrip() + "\n", style)
    if len(rows) > len(shown):
        bad = sum(row.trouble > 0 for row in rows) - sum(row.trouble > 0 for row in shown)
        text.append(f"... {len(rows) - len(shown)} more lines, {bad} of them in trouble\n", "dim")
    text.rstrip()
    return text


def told(event: Event) -> Text:
    """One line about what happened."""
    line = Text(f"[{event.at_s:7.1f} s] ", "dim").append(f"{visible(event.host)}  ", "bold cyan")
    return line.append(visible(event.text), _SEVERE.get(event.kind, ""))


class LiveWatch(LiveDisplay):
    """Shows a watch while it goes on."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._verbose = verbose
        self._summed_s: float | None = None
        self._table = Text()
        super().__init__(console)

    def event(self, event: Event) -> None:
        """One line; a live table stays below it."""
        print_hanging(self._console, told(event), label=12)

    def tick(self, now_s: float, hosts: Sequence[HostSeries]) -> None:
        """Draw the table again; without a terminal a line now and then."""
        if self._live:
            rows = live_rows(hosts, self._verbose)
            self._table = table(rows, self._console.width, max(2, self._console.height - 3))
        elif self._is_due(now_s, hosts):
            self._summed_s = now_s
            self._console.print(Text(f"[{now_s:7.1f} s] {summary(hosts)}"), soft_wrap=True)

    def _picture(self) -> Text:
        return self._table

    def _is_due(self, now_s: float, hosts: Sequence[HostSeries]) -> bool:
        """As soon as each host has told something, or is known to be silent; and then every so many samples."""
        if self._summed_s is None:
            return all(host.seen_s is not None or host.silence.now for host in hosts)
        return now_s - self._summed_s >= SUMMARY_SAMPLES * hosts[0].every_s


def summary(hosts: Sequence[HostSeries]) -> str:
    """How all hosts are, in one line."""
    answering = [host for host in hosts if not host.silence.now]
    telling = [gpu for host in answering for gpu in host.gpus.values() if gpu.now]
    gpus = [gpu.now for gpu in telling if gpu.now]
    taken = [*(host.samples for host in answering), *(gpu.samples for gpu in telling)]
    used = [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]
    heat = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    least = min(taken, default=0)
    words = [f"{len(answering)} of {len(hosts)} hosts answer, {counted(least, 'sample')} of each"]
    if used:
        words.append(f"{len(gpus)} GPUs at {sum(used) / len(used):.0f} % (least {min(used):.0f} %)")
    if heat:
        words.append(f"hottest {max(heat):.0f} C, {sum(bool(_reasons(gpu)) for gpu in gpus)} throttled")
    alive = sum(rank.ended_s is None for host in hosts for rank in host.ranks.values())
    return ", ".join([*words, counted(alive, "rank")])


def render(answer: Answer, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int = 0) -> None:
    """Print the answer. Nothing in it can drive the terminal: all remote text goes through ``visible``."""
    report = answer.report
    verdict = _verdict(answer)
    console.print(verdict)
    report_console.body(report, console, verbose)
    if answer.hosts:
        rows = whole_rows(answer.hosts, verbose)
        console.print(table(rows, console.width, None if verbose else 20), soft_wrap=True)
        console.print()
    shown = answer.events if verbose else answer.events[-EVENTS_SHOWN:]
    if len(answer.events) > len(shown):
        console.print(Text(f"  ... {len(answer.events) - len(shown)} earlier events (--verbose shows all)", "dim"))
    for event in shown:
        print_hanging(console, told(event), 2, 12)
    for note in () if verbose else report_console.notes(report):
        print_labelled(console, "note", "cyan", note)
    for gap in report_console.not_checked(report, verbose):
        print_labelled(console, "not checked", "yellow", gap)
    report_console.tail(report, console, saved, exit_code)
    print_again(console, verdict)


def _verdict(answer: Answer) -> Text:
    report = answer.report
    seen = f"on {len(report.reached)} of {counted(len(report.hosts), 'host')} in {duration(report.seconds)}"
    if report.verdict == "faulty":
        return Text("✗ FAULTY", "bold red").append(f": {visible(report_console.headline(report)[1])}", "bold")
    if report.verdict == "incomplete":
        words = f": nothing wrong was seen {seen}, but not everything could be seen (see below)."
        text = Text("? INCOMPLETE", "bold yellow").append(words, "bold")
    else:
        text = Text("✓ NOTHING SEEN", "bold green").append(f": nothing wrong was seen {seen}.", "bold")
    warnings = len(report_console.alike([item for item in report.causes if item.severity.value == "warn"]))
    return text.append(f" {counted(warnings, 'warning')}.", "bold yellow") if warnings else text
