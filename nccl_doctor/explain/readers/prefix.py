"""Who said a line, and when: launchers, schedulers and loggers put it in front of the text in many ways.

Known: torchrun (``[default0]:``, ``[rank3]:``), Open MPI and Horovod (``[1,5]<stdout>:``, ``[5]<stdout>:``), srun ``-l`` (``3: ``), pdsh and Kubernetes
(``host: ``, ``[pod/name/container] ``), Ray (``(Worker pid=1, ip=10.0.0.1) ``), CRI and syslog and dmesg lines, Python's and
glog's log formats, NCCL's ``host:pid:tid [dev]``, and torch's ``[PG ID 0 PG GUID 0 Rank 3]``.
"""

from __future__ import annotations

import copy
import functools
import re

import msgspec

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


class Line(msgspec.Struct):
    """A line without its prefixes. ``task`` is a label that may be a rank or a node index (srun -l)."""

    body: str
    rank: int | None = None
    task: int | None = None
    host: str = ""
    pid: str = ""
    seconds: float | None = None
    timed: bool = False  # a time stood before the text
    hosts: int = 0  # how many hosts' names stood before the text, or no other may follow
    key: str = ""  # lines of one process share it; used to put interleaved tracebacks together


def _seconds_of_year(month: int, day: int, hour: int, minute: int, second: float) -> float | None:
    """Seconds since the year began, without leap days: good for order and differences."""
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    return float((_DAYS_BEFORE[month - 1] + day - 1) * 86400 + hour * 3600 + minute * 60) + second


_MOST_HOSTS = 2  # before a text: a collector's (pdsh), and the launcher's
_MONTH_AND_DAY = rf"(?P<mon>{'|'.join(_MONTHS)})\s+(?P<d>\d\d?) "
_CRI = re.compile(
    r"\d{4}-(?P<mo>\d\d)-(?P<d>\d\d)T(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:\.\d{1,9})?)\S{0,6} (?:stdout|stderr) [FP] "
)
_ISO = re.compile(
    r"[\[(]?\d{4}[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?[\])]?[:,]?\s?"
)
_SHORT_ISO = re.compile(r"(?P<mo>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\s")
_GLOG = re.compile(
    r"\[?(?P<level>[IWEFVC])(?P<mo>\d\d?)(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:\.\d{1,9})?)\s+[^\]]{0,200}\]\s?"
)
_SYSLOG = re.compile(
    _MONTH_AND_DAY
    + r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\s+(?P<host>[\w.-]+)\s+(?:(?!kernel:)[\w./()-]{1,60}(?:\[\d+\])?:\s|(?=kernel:))"
)
# Behind a time of ISO 8601, as today's rsyslog and journalctl write it: "gpu07 train[4711]: ".
_SENDER = re.compile(
    r"(?!(?:DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL))(?P<host>[\w.-]{1,64}) (?:[\w./()-]{1,60}\[\d+\]: |(?=kernel: ))"
)
_KERNEL = re.compile(r"(?P<host>[\w.-]{1,64}) (?=kernel: )")  # whose time was cut away
_DMESG_T = re.compile(r"\[\w{3} " + _MONTH_AND_DAY + r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\s{1,2}\d{4}\]\s?")
_DMESG = re.compile(r"(?:kern  :\w+\s*: )?\[\s*\d+\.\d{6}\]\s?")
_TIME_ONLY = re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s")
_ELASTIC = re.compile(r"\[(?:default|[a-z]\w{0,30}?)(?P<local>\d+)\]:\s?")
_RANK_TAG = re.compile(r"\[rank ?(?P<rank>\d{1,9})\]:?\s?", re.IGNORECASE)
_TORCHS_TAG = re.compile(r"\[rank(?P<rank>\d{1,9})\]:")
_RANK_WORD = re.compile(r"\(?rank[ =:]?\s?(?P<rank>\d{1,9})\)?\s?[:|>-]\s", re.IGNORECASE)
_MPI = re.compile(
    r"\[(?:(?:prterun-[\w.-]{1,80}@)?\d+,)?(?:mpirank:)?(?P<rank>\d{1,9})(?:,(?P<host>[\w.-]{1,64}))?\](?:\[[^\]]{0,80}\])?<(?:stdout|stderr|stddiag)>:\s?"
)
# What srun tells of a task names its host; the task's number is a rank only where each rank is a task of its own.
_SRUN_ERROR = re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: ")
# Not the number and the name of an interface, as ip and ifconfig list them: "2: eth0: <BROADCAST,...".
_SRUN = re.compile(r"\s{0,6}(?P<task>\d{1,6}):(?: (?!\S{1,40}: <[A-Z])|$)")
_PID_TAG = re.compile(r"\[pid (?P<pid>\d{1,9})\] ")
_BARE_RANK = re.compile(r"\[(?P<task>\d{1,6})\] ")
_RAY = re.compile(
    r"\((?:(?:[\w.:=\[\]-]{1,80}(?: \w+=[\w.-]+| [DTPE]P\d+){0,3}? )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?(?:, [^)]{0,80})?"
    r"|raylet, ip=(?P<node>[\d.]+))\)\s?"
)
# "(worker1, rank=1, pid=31003, ip=10.20.0.12) ": the rank is the node's
_SKYPILOT = re.compile(r"\((?P<host>[\w.-]{1,64}), rank=\d{1,6}, pid=(?P<pid>\d+)(?:, ip=[\d.]+)?\)\s?")
_PARALLEL = re.compile(r"(?:[DTPE]P\d+ ?){1,4}\]\s?")  # SGLang: "[2025-02-22 08:19:45 DP0 TP3] "
_PARALLEL_TAG = re.compile(r" (?:[DTPE]P\d+ ?){1,4}(?:pid=\d+\)|\])")
_TENSOR_RANK = re.compile(r"(?<![A-Za-z])TP(\d{1,9})(?!\d)")
_RAY_TASK = re.compile(r"ray::.{1,120}?\(pid=(?P<pid>\d+), ip=(?P<host>[\d.]+)")  # whose exception it is
_TOLD_HOST = re.compile(r"\[(?:prolog|epilog|kern|kernel|dmesg|syslog|health)[ :=]{1,2}(?P<host>[\w.-]{1,64})\]:?\s")
_POD = re.compile(r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\]\s?")
_HOST = re.compile(r"(?P<host>[A-Za-z][A-Za-z0-9.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}): (?!<[A-Z]|flags=\d)")
_PIPE_HOST = re.compile(r"(?P<host>[A-Za-z][A-Za-z0-9.-]{1,62})\s*\| ")
_PY_LOG = re.compile(
    r"(?:\[?(?:INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|DEBUG)\]?:?\s+(?=\[|(?:\d\d)?\d\d-\d\d))|(?:\[[\w./-]{1,60}\.py:\d+(?::\w+)?\]\s?)|"
    r"\[[a-z]\w{0,30}\] (?=\d{4}-\d\d-\d\d )"  # torchtitan: its name, and then the time
)
# What Python's loggers put behind the time: " - name - LEVEL - " (or the other way round), " | LEVEL | name:function:88 - ".
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_BEHIND_TIME = re.compile(
    rf"- (?:[\w./:-]{{1,60}} - {_LEVEL}|{_LEVEL} - [\w./:-]{{1,60}}) - |\| {_LEVEL} {{0,5}}\| [\w.:<>-]{{1,160}} - "
)
# Dates in front of which stands what nobody knows: "[NeMo I 2026-", "node 1: [rank9]:[E0302 ", "(raylet) [2026-", and as some
# write them ("[01/30/2026 05:55:15]", "[02/16 08:16:00 d2.utils]", "25/03/04 09:12:03").
_MONTH, _DAY, _CLOCK = (
    r"(?P<mo>0[1-9]|1[0-2])",
    r"(?P<d>0[1-9]|[12]\d|3[01])",
    r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d{1,9})?)",
)
_ELSEWHERE = (
    re.compile(rf"(?<!\d)\d{{4}}[-/:]{_MONTH}[-/:]{_DAY}[T _,-]{_CLOCK}"),
    re.compile(rf"(?<!\w)[IWEFC](?:20\d\d)?(?P<mo>0?[1-9]|1[0-2]){_DAY} {_CLOCK}"),
    re.compile(rf"(?<![\d/])(?:\d\d/(?=\d\d/\d\d ))?{_MONTH}/{_DAY}(?:/\d{{4}})?[ -]{_CLOCK}"),
)
_HAS_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_WORDS_OF_A_LABEL = 3
_LABEL_END = 64  # letters: what a line begins with, whoever wrote it
_WITHIN_SENTENCE = re.compile(
    r"\b(?:at|since|until|till|from|to|on|by|of|before|after|between|than|was|is|started?|ended|time|date|eta)\W*$",
    re.IGNORECASE,
)
_NCCL = re.compile(r"(?P<host>[\w.-]{1,64}):(?P<pid>\d+):\d+ \[-?\d+\] ")
# What MPI and the libraries below it put in front: UCX "[gpu07:1313:0:1313] " and "[gpu07:1313 :0]   ucp_mm.c:76   UCX  ERROR ",
# Open MPI "[gpu07:1313] *** " and, with the rank, "[gpu07][[31251,1],3][btl_tcp_endpoint.c:", Hydra's proxies "[proxy:0:1@gpu07] ".
_OF_MPI = (
    re.compile(r"\[(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,9}) {0,6}:\d{1,9}(?::(?P=pid)\]|\] {1,20}\w{1,40}\.c:\d)"),
    re.compile(
        r"\[(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,9})\] (?=\*\*\* (?:Process rec|An err|reported|on |MPI_|and |   and|End of)|Signal(?: code)?:|"
        r"Failing at address|\[ ?\d{1,3}\] \S+(?:\(|\[0x)|\[\[\d|(?:PMIX|PRTE|ORTE|OPAL|OMPI) ERROR|"
        r"\d+ more process|mca_|pml_|PML |[bm]tl[:_]|Read -?\d|MCW rank|select: |Set MCA)"
    ),
    re.compile(r"\[(?P<host>[\w.-]{1,64})\]\[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,9})\]\["),
    re.compile(r"\[proxy:\d{1,9}:\d{1,9}@(?P<host>[\w.-]{1,64})\] "),
)
_PSM = re.compile(r"(?P<host>[\w.-]{1,64}):rank(?P<rank>\d{1,9})\.[\w.-]{1,40}: ")  # "nid01:rank3.python3: "
_PG_RANK = re.compile(r"\[(?:PG [^\]]{0,160}? )?Rank (?P<rank>\d{1,9})\]")
_NO_HOSTS = (
    "python3",
    "mlx4",
    "mlx5",
    "nvidia-smi",
    "nvidia-ctk",
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-uvm",
    "nvidia-modeset",
    "flux-job",
    "fairseq-train",
    "avg-cpu",  # iostat
)  # names of programs that look like those of hosts
_NO_DOMAINS = (
    *(".", "-", ".py", ".cc", ".cpp", ".cu", ".sh", ".so", ".c", ".h"),
    *(".service", ".socket", ".slice", ".scope", ".timer", ".target", ".mount"),  # systemd's units
)


def _take_time(line: Line, found: re.Match[str]) -> None:
    day, hour, minute, second = found.group("d", "h", "mi", "s")
    month = int(found["mo"]) if "mo" in found.re.groupindex else _MONTHS.index(found["mon"]) + 1
    line.seconds = _seconds_of_year(month, int(day), int(hour), int(minute), float(second.replace(",", ".")))
    line.timed = True


def is_host(name: str) -> bool:
    """Whether a word that stands before a text looks like the name of a host."""
    lower = name.lower()
    if lower in _NO_HOSTS or name.endswith(_NO_DOMAINS):
        return False
    if lower.startswith("nvidia-nvswitch"):  # the driver names its switches so
        return False
    if re.search(r"(?:Error|Exception|Warning|Interrupt|Exit|\.error|\.timeout)$|^E[A-Z]\d{4}$", name):  # CANN: EI0006
        return False
    return any(char.isdigit() for char in name) or ("-" in name and name == lower)


def is_glog_error(text: str) -> bool:
    """Whether a line is an error, or the end of its program, by its level as Google's programs write it."""
    if not text.partition(".cc:")[2].partition("]")[0].isdigit():  # "E0312 18:21:07.709180  1 manager.cc:200] "
        return False
    found = _GLOG.search(text, 0, 200)
    return found is not None and found.group("level") in "EF"


def parse(text: str) -> Line:
    """Split one line (already cut, decoded) into who, when and the body; unknown text is all body."""
    return copy.copy(_parsed(text))


@functools.lru_cache(maxsize=64)  # a log's last lines are looked at as its end and as what came before the trouble
def _parsed(text: str) -> Line:
    if "\x1b" in text:
        text = ANSI.sub("", text)
    line = Line(text)
    at = 0
    label = ""
    for _ in range(8):
        step = _one_prefix(line, text, at)
        if step is None:
            break
        at, key = step
        label += key
    line.body = text[at:]
    if line.body.startswith("srun: error: ") and (found := _SRUN_ERROR.match(line.body)):
        line.host = found.group("host")
    found = _NCCL.search(line.body, 0, 160) if " NCCL " in line.body else None
    if found and " NCCL " in line.body[found.end() - 1 : found.end() + 120]:
        line.host, line.pid = found.group("host"), found.group("pid")
        label += f"p{line.pid}"
    elif native := _of_mpi(line.body):
        told = native.groupdict()
        line.host, line.pid = told["host"], told.get("pid") or line.pid
        if line.rank is None and told.get("rank"):
            line.rank = int(told["rank"])
        label += f"h{line.host}p{line.pid}"
    elif line.rank is None:
        tagged = None
        if "ank" in line.body or "RANK" in line.body:
            tagged = (
                _TORCHS_TAG.search(line.body, 0, 160)  # before the number in a group
                or _PG_RANK.search(line.body, 0, 240)
                or _RANK_TAG.search(line.body, 0, 160)
            )
        if tagged:
            line.rank = int(tagged.group("rank"))
        elif " TP" in line.body:
            found = _PARALLEL_TAG.search(line.body, 0, 160)
            _take_tensor_rank(line, found.group() if found else "")
    if not line.host and "ray::" in line.body and (task := _RAY_TASK.search(line.body, 0, 400)):
        line.host, line.pid = task["host"], task["pid"]
    if not line.timed:
        _take_later_time(line, text, at)
    line.key = label
    return line


def _of_mpi(body: str) -> re.Match[str] | None:
    """Who said it, as MPI and the libraries below it write it."""
    if body.startswith("["):
        return next((found for pattern in _OF_MPI if (found := pattern.match(body))), None)
    found = _PSM.match(body) if ":rank" in body[:80] else None
    return found if found and is_host(found["host"]) else None  # "metrics:rank3.loss: " is none


def _take_later_time(line: Line, text: str, at: int) -> None:
    """The time of a line that begins with a few words that nobody knows; what follows them stays as it is."""
    clock = _HAS_CLOCK.search(text, at, at + _LABEL_END)
    if clock is None:
        return
    for pattern in _ELSEWHERE:
        found = pattern.search(text, at, clock.end() + 10)
        if found:
            label = text[at : found.start()].strip()
            enclosed = label[:1] in "([" and label[-1:] in ")]"
            if enclosed or (len(label.split()) <= _WORDS_OF_A_LABEL and not _WITHIN_SENTENCE.search(label)):
                _take_time(line, found)
            return


def _one_prefix(line: Line, text: str, at: int) -> tuple[int, str] | None:
    """Recognise one prefix at ``at``; returns where the rest begins and what it adds to the process key."""
    char = text[at : at + 1]
    if not char or char in " \t":
        return _task(line, _SRUN.match(text, at)) if at == 0 or line.timed else None
    if at == 0 and text.startswith("> "):
        return 2, ""  # quoted in a mail
    if char.isdigit():
        for pattern in (_CRI, _ISO, _SHORT_ISO):
            found = pattern.match(text, at)
            if found:
                _take_time(line, found)
                sender = _SENDER.match(text, found.end()) if pattern is _ISO else None
                if sender:
                    line.host = sender.group("host")
                return (sender or found).end(), ""
        found = _TIME_ONLY.match(text, at)
        if found:
            line.timed = True
            return found.end(), ""
        return _task(line, _SRUN.match(text, at)) or _host(line, text, at)
    if char in "-|":
        found = _BEHIND_TIME.match(text, at) if line.timed else None
        return (found.end(), "") if found else None
    if char == "[":
        return _bracket(line, text, at)
    if char == "(":
        found = _SKYPILOT.match(text, at)
        if found:
            line.host, line.pid = found.group("host"), found.group("pid")
            return found.end(), f"p{line.pid}{line.host}"
        found = _RAY.match(text, at)
        if found:
            line.pid = found.group("pid") or ""
            line.host = found.group("ip") or found.group("node") or line.host
            rank = re.search(r"rank=(\d{1,9})\b", found.group())
            if rank:
                line.rank = int(rank.group(1))
            else:
                _take_tensor_rank(line, found.group())
            return found.end(), f"p{line.pid}{line.host}"
        return _rank(line, _RANK_WORD.match(text, at))
    return _word(line, text, at)


def _task(line: Line, found: re.Match[str] | None) -> tuple[int, str] | None:
    if found is None or line.task is not None:
        return None
    line.task = int(found.group("task"))
    return found.end(), f"t{line.task}"


def _rank(line: Line, found: re.Match[str] | None) -> tuple[int, str] | None:
    if found is None:
        return None
    if line.rank is None or "[rank" in found.group():  # behind torch's own tag, "[Rank 0]" is the number in a group
        line.rank = int(found.group("rank"))
    return found.end(), f"r{line.rank}"


def _take_tensor_rank(line: Line, label: str) -> None:
    """The rank of a serving engine's worker within its replica (``TP3``), unless there are several replicas."""
    found = _TENSOR_RANK.search(label)
    if found and not re.search(r"[DP]P[1-9]", label):
        line.rank = int(found.group(1))


def _bracket(line: Line, text: str, at: int) -> tuple[int, str] | None:
    if text[at + 1 : at + 2].isdigit():  # a year, most often
        found = _ISO.match(text, at)
        if found:
            _take_time(line, found)
            parallel = _PARALLEL.match(text, found.end())
            if parallel:
                _take_tensor_rank(line, parallel.group())
                return parallel.end(), parallel.group()
            return found.end(), ""
    found = _RANK_TAG.match(text, at)
    if found:
        return _rank(line, found)
    found = _MPI.match(text, at)
    if found:
        line.task = int(found.group("rank"))
        line.host = found.group("host") or line.host
        return _rank(line, found)
    found = _PID_TAG.match(text, at)
    if found:
        line.pid = found.group("pid")
        return found.end(), f"p{line.pid}"
    found = _POD.match(text, at) or _TOLD_HOST.match(text, at)
    if found:
        line.host = found.group(1)
        return found.end(), f"h{line.host}"
    for pattern in (_GLOG, _DMESG_T):
        found = pattern.match(text, at)
        if found:
            _take_time(line, found)
            line.hosts = _MOST_HOSTS if pattern is _DMESG_T else line.hosts
            # glog's own bracket holds the source file; a message follows it
            return found.end(), ""
    found = _DMESG.match(text, at)
    if found:
        line.timed, line.hosts = True, _MOST_HOSTS  # who speaks behind it is a part of the kernel: "eth0: ", "IPv6: "
        return found.end(), ""
    found = _TIME_ONLY.match(text, at)
    if found and "]" in found.group():
        line.timed = True
        return found.end(), ""
    found = _ELASTIC.match(text, at)
    if found:
        return found.end(), f"l{found.group('local')}"
    found = _PY_LOG.match(text, at)
    return (found.end(), "") if found else _task(line, _BARE_RANK.match(text, at))


def _word(line: Line, text: str, at: int) -> tuple[int, str] | None:
    if " NCCL " in text and _NCCL.match(text, at):
        return None
    if text[at].isupper():
        found = _GLOG.match(text, at) or _SYSLOG.match(text, at)
        if found:
            _take_time(line, found)
            if found.re is _SYSLOG:
                line.host = found.group("host")
            return found.end(), ""
        found = _PY_LOG.match(text, at)
        if found:
            return found.end(), ""
    if "kernel: " in text and (found := _KERNEL.match(text, at)) and is_host(found["host"]):
        line.host = found["host"]
        return found.end(), ""
    if text[at] in "rR" and (found := _RANK_WORD.match(text, at)):
        return _rank(line, found)
    return _host(line, text, at)


def _host(line: Line, text: str, at: int) -> tuple[int, str] | None:
    if line.hosts == _MOST_HOSTS or (": " not in text and "| " not in text):
        return None
    for pattern in (_HOST, _PIPE_HOST):
        found = pattern.match(text, at)
        if found and is_host(found.group("host")):
            line.hosts += 1
            line.host = (
                found.group("host").removeprefix("slurmstepd-").removeprefix("slurmd-")
            )  # they put their host's name behind their own
            return found.end(), f"h{line.host}"
    return None
