"""Heat and power: what slows GPUs down."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says
from nccl_doctor.explain.signatures.gpu import NONE

says(
    "straggler-report",
    "STRAGGLER DETECTION WARNING: Some GPUs {what}. Affected ranks: {ranks}",
    why="NVIDIA's resiliency extension times the kernels of each rank: these GPUs are slower than the others', or than they were.",
)
says(
    "megatron-straggler",
    "MnRtt/Rnk: {least:word} | MxRtt/Rnk: {most:word} |",
    why="Megatron's --log-straggler (and Composer's callback of it): least and most of each rank's times, power, heat, load and clock.",
)
says(
    "gpu-in-table",
    ".0 Off |",
    ".0 On |",
    why="nvidia-smi's table: the line that names a GPU, above the one that tells its heat and power.",
    every=True,
)
says(
    "asked-in-full",
    "Gpu {}: {load:int} %",
    "SM {}: {mhz:int} MHz",
    "GPU Current Temp {}: {now:int} C",
    "GPU Slowdown Temp {}: {slowdown:int} C",
    "GPU T.Limit Temp {}: {margin:int} C",
    sampled=True,
    every=True,
    why="nvidia-smi -q: a GPU's load, its clock (and below it the highest one), its heat, and how far it is from slowing down.",
)
says(
    "gpu-listed",
    "C, {} % |",
    "C, {} W |",
    "Mhz {}Mhz {}W {}%",
    "C {}C {} MHz {}%",
    sampled=True,
    every=True,
    why="gpustat, rocm-smi or amd-smi: a GPU's heat, load, power and clock, a line for each.",
)
HOT = 88  # degrees Celsius from which data-centre GPUs slow down
says(
    "throttle",
    "Slowdown{}: Active",
    "clocks_throttle_reasons.hw_slowdown{}Active",
    "thermal_slowdown Active",
    "hw_slowdown Active",
    "power_brake_slowdown Active",
    "HW Slowdown{} Active",
    "thermal slowdown",
    "Power Supply AC lost",
    "power brake",
    "Package temperature above threshold",
    "hermal violation",
    "event_reasons: {reason}_slowdown",
    "throttle_reasons: {reason}_slowdown",
    cause="gpu.thermal-power",
    strength=0.9,
    title="GPUs are throttled by heat or power",
    why="A slowdown reason is active: heat, power brake (the board's or rack's power supply) or a thermal limit.",
    where=lambda groups, line: "Not Active" not in line and not NONE.search(line),
)
says(
    "power-capped",
    "SW Power Cap{}: Active",
    role=Role.HARMLESS,
    why="A GPU that computes at full power lowers its clock to stay within its power limit: the normal state under dense work.",
)
says(
    "slowed-by-heat",
    "- Thermal (%){}| {percent:num}",
    cause="gpu.thermal-power",
    strength=0.84,
    title="heat slowed a GPU down in {percent} % of the job's time",
    why="dcgmi stats of a job: in what part of its time a GPU's clock was lowered for heat. Power (%) is its power limit's, as under any dense work.",
    where=lambda groups, line: float(groups["percent"]) >= 20,
)
says(
    "power-limits",
    "Current Power Limit{}: {watts:num} W",
    "Enforced Power Limit{}: {watts:num} W",
    "Default Power Limit{}: {watts:num} W",
    why="nvidia-smi -q: the most that a GPU may draw, and what its board was made for.",
    every=True,
)
says(
    "throttle-mask",
    "0x00000000000000{mask:hex}",
    cause="gpu.thermal-power",
    strength=0.9,
    title="GPUs are throttled by heat or power (reasons 0x{mask})",
    why="nvidia-smi's bit mask of clock event reasons: 0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake.",
    where=lambda groups, line: (
        re.fullmatch(r"[0-9A-Fa-f]{2}", groups["mask"]) is not None
        and int(groups["mask"], 16) & 0xE8 != 0
        # or a row of a table: clocks, temperature, power
        and re.search(r"MHz| W\b|Active|throttle|clocks|NVIDIA|Tesla|(?<!\s)(?:\s+\d+){5,}\s+0x", line) is not None
    ),
)
says(
    "heat-or-power-told",
    "clocks are being throttled",
    "hermal throttling",
    "emperature above",
    "over temperature",
    "overtemperature",
    "locks throttled",
    "power cap",
    "PSU{}ailure",
    "PSU{} failed",
    "Power supply{}ailure",
    "PWR_BRAKE",
    "power excursion",
    "GPU temperature {temp:int}",
    "cooling failure",
    "fan failure",
    "Upper Critical going high",
    "power limit was reduced",
    cause="gpu.thermal-power",
    strength=0.72,
    title="GPUs are throttled by heat or power",
    why="A monitor or the kernel speaks of throttling.",
    where=lambda groups, line: (
        not re.search(r"Not Active|N/A|no throttl|GPU (?:Shutdown|Slowdown|Max)|Core temperature above", line)
        and not NONE.search(line)
        and int(groups.get("temp", "").lstrip("+") or HOT) >= HOT
        and ("power cap" not in line or re.search(r"reach|exceed|limited|thrott|slow|\bhit\b", line) is not None)
    ),
)
says(
    "cpu-hot",
    "CPU clock throttled",
    "cpu clock throttled",
    "Core temperature above threshold",
    cause="gpu.thermal-power",
    strength=0.45,
    title="a host's CPU is throttled by heat",
    why="The kernel counts throttled moments of a core: common and short under load, telling only where many cores do so for long.",
)
says(
    "throttle-column",
    ", Active",
    why="A cell of nvidia-smi's CSV output that says Active; the heading tells of what.",
)
says(
    "dcgm-throttle",
    "clocks_throttle_reason",
    "clocks_event_reasons",
    why="Throttle reasons asked of nvidia-smi or DCGM.",
)
says(
    "busy-and-watts",
    "100 %, {watts:num} W",
    why="nvidia-smi was asked for load and power: what a GPU that is busy all the time draws.",
)
says(
    "power-and-cap",
    "W / {cap:int}W ",
    why="nvidia-smi's table: fan, temperature and load of a GPU, what it draws, and the most that it may draw.",
    every=True,
)
