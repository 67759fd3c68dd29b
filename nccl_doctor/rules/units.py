"""Numbers with their units, as findings show them, and the units that users may write."""

from __future__ import annotations

BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # letter -> bytes


def size(count: float) -> str:
    """Bytes in binary units: ``64 MiB``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB" if count < 100 else f"{count:.0f} TiB"


def days(uptime_s: float | None) -> float:
    """The days that a total since the boot is spread over: at least one, also where the uptime is not known."""
    return max((uptime_s or 86400.0) / 86400.0, 1.0)


def of_uptime(uptime_s: float | None) -> str:
    """`` in 12 d of uptime``; empty where it is not known."""
    return f" in {duration(uptime_s)} of uptime" if uptime_s else ""


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``12 min``, ``5 h`` or ``3 d``."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
