"""What a host's processes wait for, as its listings tell: disks and network file systems, memory, cores."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

says(
    "pressure",
    "avg10={ten:num} avg60={sixty:num} avg300=",
    sampled=True,
    every=True,
    why="Pressure stall information of Linux (/proc/pressure, cgroups' *.pressure): in what part of the time some, or all, tasks waited.",
)
says(
    "pressure-of",
    "/proc/pressure/",
    "cpu.pressure",
    "io.pressure",
    "memory.pressure",
    sampled=True,
    every=True,
    why="Of which resource the pressure below is.",
)
says(
    "nfsiostat",
    "read: {}avg RTT (ms)",
    "write: {}avg RTT (ms)",
    rows=1,
    every=True,
    why="nfsiostat: how often a network file system is read or written, and how long its server takes.",
)
SAVED = re.compile(
    r"(?:check-?point|ckpt).{0,120}?\b(?:in|took|duration|time)\W{0,4}(\d{1,6}(?:\.\d{1,6})?) ?s(?:ec(?:ond)?s?)?\b|"
    r"enabled\)in (\d{1,6}(?:\.\d{1,6})?) seconds|save-checkpoint \.+: \(\d+\.\d+, (\d{1,9}\.\d+)\)",  # torchtitan; Megatron's timer, in ms
    re.IGNORECASE,
)
_NO_SAVE = re.compile(r"load|restor|resum|\basync(?! is enabled)|background|\[GC\]", re.IGNORECASE)
says(
    "checkpoint-saved",
    "heckpoint",
    "ckpt",
    sampled=True,
    every=True,
    why="A program tells how long it saved a checkpoint, and did nothing else meanwhile.",
    where=lambda groups, line: (
        SAVED.search(line) is not None
        and _NO_SAVE.search(line) is None
        and re.search(r"sav|writ|wrote|duration", line, re.IGNORECASE) is not None
    ),
)
says(
    "iostat",
    "Device{}await{}%util",
    rows=48,
    every=True,
    why="The heading of iostat -x: reads and writes of each disk, how long they take, and in what part of the time it is busy.",
)
says(
    "iowait",
    " id, {waiting:num} wa,",
    " id, {waiting:num}%wa,",
    sampled=True,
    every=True,
    why="top: in what part of the time the host's cores had nothing to do but wait for disks.",
)
_CPU_TIMES = re.compile(
    r"Cpu\(s\):.{0,60}?(?P<idle>\d{1,3}(?:\.\d)?)[ %]?id,.{0,60}?(?P<stolen>\d{1,3}(?:\.\d)?)[ %]?st"
)
says(
    "cpu-times",
    "Cpu(s):",
    sampled=True,
    every=True,
    why="top: what part of the cores' time was idle, and what part the hypervisor gave to others.",
    pattern=_CPU_TIMES,
)
says(
    "avg-cpu",
    "avg-cpu: {}%iowait",
    rows=1,
    every=True,
    why="iostat: in what part of the time the host's cores had nothing to do but wait for disks.",
)
TOP_MEMORY = re.compile(r"Mem ?: *(\d+(?:\.\d+)?) total")
TOP_SWAP = re.compile(r"Swap: *(\d+(?:\.\d+)?) total, *\S+ free, *(\d+(?:\.\d+)?) used\. *(\d+(?:\.\d+)?) avail Mem")
says(
    "top-memory",
    "B Mem :",
    "B Swap:",
    sampled=True,
    why="top: the host's memory; its swap, and the memory that programs can still get.",
    where=lambda groups, line: (TOP_MEMORY.search(line) or TOP_SWAP.search(line)) is not None,
)
_KSWAPD = re.compile(r"\s[RSDI]\s+(?P<percent>\d+\.\d)\s+\d+\.\d\s+\S+ kswapd\d+\s*$")
says(
    "kswapd",
    " kswapd{node:int}",
    sampled=True,
    why="top: the kernel's thread that looks for memory to give away.",
    pattern=_KSWAPD,
)
_READ_RATE = re.compile(r"(?:copied, \d+(?:\.\d+)? s, |READ: bw=\S+ \()(?P<rate>\d+(?:\.\d+)? ?[kMG]?B)/s")
says(
    "read-rate",
    "copied, ",
    "READ: bw=",
    sampled=True,
    why="dd or fio: at what rate a file was read.",
    pattern=_READ_RATE,
)
says(
    "one-core",
    "current affinity list: {cores:word}",
    "suggested max number of worker in current system is {cores:int},",
    " CPUs/Task={cores:int} ",
    sampled=True,
    why="taskset, PyTorch or Slurm: which cores, or how many, a process has.",
    where=lambda groups, line: groups["cores"].isdecimal() and ("list" in line or groups["cores"] == "1"),
)
says("pinged", "--- {address:word} ping statistics ---", why="Whose answers ping counts.")
says(
    "round-trip",
    "rtt min/avg/max/mdev = {least:num}/{usual:num}/",
    "round-trip min/avg/max = {least:num}/{usual:num}/",
    sampled=True,
    why="ping: how long an answer took, in ms.",
)
says(
    "tsc-unstable",
    "Marking TSC unstable due to",
    "Marking clocksource 'tsc{}' as unstable",
    why="Linux gives the CPU's own counter up and reads the time from a slower clock: some programs ask for it all the time.",
)
