"""What changes nothing of a job changes nothing of the answer: collectors, colours, names of files, a second copy.

Each case is tried with some of the changes, in turn; with ``NCCL_DOCTOR_EVERY_CHANGE=1`` with all of them (two minutes).
"""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import Explanation, LogSource
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.explain.readers.inputs import identity
from tests.unit.explain.test_cases import CASES, logs_of

Change = Callable[[list[LogSource]], list[LogSource]]
EACH = 3  # changes of one case

SERVICES = """\
Jan 02 03:04:05 hostx sshd[991]: Accepted publickey for ops from 10.0.0.9 port 50022 ssh2
Jan 02 03:04:05 hostx CRON[4411]: (root) CMD (   cd / && run-parts --report /etc/cron.hourly)
Jan 02 03:04:05 hostx systemd[1]: Finished Daily apt download activities.
Jan 02 03:04:05 hostx systemd[1]: logrotate.service: Deactivated successfully.
Jan 02 03:04:05 hostx containerd[900]: time="2026-01-02T03:04:05.000Z" level=info msg="StopContainer returns successfully"
Jan 02 03:04:05 hostx snapd[700]: storehelpers.go:773: cannot refresh: snap has no updates available: "lxd"
I0102 03:04:05.000123       1 leaderelection.go:260] successfully acquired lease kube-system/controller
level=info ts=2026-01-02T03:04:05Z caller=main.go:17 msg="scrape finished" targets=12
10.0.0.4 - - [02/Jan/2026:03:04:05 +0000] "GET /healthz HTTP/1.1" 200 2
[INFO] 10.244.0.5:40123 - 17 "A IN web.default.svc.cluster.local. udp 49 false 512" NOERROR qr,aa,rd 96 0.00012s
2026-01-02 03:04:05.000 UTC [88] LOG:  checkpoint complete: wrote 12 buffers (0.1%); 0 WAL file(s) added
1:M 02 Jan 2026 03:04:05.000 * Background saving terminated with success
"""


def _each_line(wrap: Callable[[str], str]) -> Change:
    return lambda logs: [
        msgspec.structs.replace(log, content="".join(f"{wrap(line)}\n" for line in str(log.content)[:-1].split("\n")))
        for log in logs
    ]


def _each_log(wrap: Callable[[str], str]) -> Change:
    return lambda logs: [msgspec.structs.replace(log, content=wrap(str(log.content))) for log in logs]


def _renamed(logs: list[LogSource]) -> list[LogSource]:
    return [msgspec.structs.replace(log, name=f"z{99 - at}.txt") for at, log in enumerate(logs)]


def _newest_first(text: str) -> str:
    """As a log service lists them: each line with the time at which it came, the last one at the top."""
    lines = text.removesuffix("\n").split("\n")
    came = [
        f"2026-01-02T03:{at // 600 % 60:02}:{at // 10 % 60:02}.{at % 10}00Z {line}" for at, line in enumerate(lines)
    ]
    return "\n".join(reversed(came)) + "\n"


def _record(field: str, **more: str) -> Callable[[str], str]:
    return lambda line: json.dumps({**more, field: line})


_LEVELS = re.compile(r"\b(\w+Error|ERROR|WARNING|INFO)\b")
COLLECTORS: dict[str, Change] = {"newest first": _each_log(_newest_first)} | {
    name: _each_line(wrap)
    for name, wrap in {
        "cri": lambda line: "2026-01-02T03:04:05.123456789Z stderr F " + line,
        "cri elsewhere": lambda line: "2026-01-02T03:04:05.123456789+02:00 stdout F " + line,
        "docker's times": lambda line: "2026-01-02T03:04:05.123456789Z " + line,
        "kubectl": lambda line: "[pod/job-0/main] " + line,
        "syslog": lambda line: "Jan 02 03:04:05 hostx app[12]: " + line,
        "journal": lambda line: "2026-01-02T03:04:05+0000 hostx app[12]: " + line,
        "rsyslog": lambda line: "2026-01-02T03:04:05.123456+00:00 hostx app[12]: " + line,
        "time": lambda line: "2026-01-02 03:04:05,123 " + line,
        "coloured host": lambda line: "\x1b[33mnode-9:\x1b[0m " + line,
        "logging": lambda line: "2026-01-02 03:04:05,123 - trainer - INFO - " + line,
        "loguru": lambda line: "2026-01-02 03:04:05.123 | INFO     | jobs.loop:run:88 - " + line,
        "unknown": lambda line: "acme/7 stream=err :: " + line,
        "ray": lambda line: "\x1b[36m(Trainer pid=7, ip=10.0.0.5)\x1b[0m " + line,
        "docker json": lambda line: json.dumps(
            {"log": line + "\n", "stream": "stderr", "time": "2026-01-02T03:04:05Z"}
        ),
        "structlog": _record("event", level="info"),
        "json logger": _record("message", asctime="2026-01-02 03:04:05,123", name="jobs"),
        "google": _record("textPayload", insertId="1x", severity="ERROR", timestamp="2026-01-02T03:04:05.6Z"),
        "cloudwatch": _record("@message", logStream="job/1"),
        "cloudwatch csv": lambda line: f'1767323045123,"{line.replace(chr(34), 2 * chr(34))}"',
        "all fields quoted": lambda line: f'"hostx","trainer","{line.replace(chr(34), 2 * chr(34))}"',
        "mail": lambda line: "> " + line,
        "indented": lambda line: "    " + line,
        "crlf and colour": lambda line: f"\x1b[31m{line}\r\x1b[0m" if line else line,
    }.items()
}
# These leave host, rank and time of a line as they are: the ranks blamed are the same, too.
FORMS: dict[str, Change] = {
    "crlf": _each_line(lambda line: line + "\r"),
    "coloured words": _each_line(lambda line: _LEVELS.sub("\x1b[1;31m\\1\x1b[0m", line)),
    "blanks behind": _each_line(lambda line: line + "  "),
    "hard blanks": _each_log(lambda text: text.replace(" ", "\xa0")),
    "byte order mark": _each_log(lambda text: "\ufeff" + text),
    "no last line feed": _each_log(lambda text: text[:-1]),
    "blank end": _each_log(lambda text: text + "\n\n  \n"),
    "renamed": _renamed,
    "another order": lambda logs: _renamed(logs)[::-1],
}
BESIDE: dict[str, Change] = {
    "a service's log": lambda logs: [*logs, LogSource("services.log", SERVICES * 3)],
    "a second copy": lambda logs: [
        *logs,
        *(msgspec.structs.replace(log, name=f"copy/{log.name}") for log in logs),
    ],
}
CHANGES = COLLECTORS | FORMS | BESIDE
# Here they write one time before all lines, which hides that the lines' own are hours or days apart.
TIMED = (
    *("cri", "cri elsewhere", "docker's times", "docker json", "syslog", "journal", "rsyslog"),
    *("time", "logging", "loguru", "json logger", "google", "cloudwatch csv", "newest first"),
)
# Behind these no prefix is looked for: neither times, nor hosts and tasks, nor torchrun's table of errors.
UNREAD = ("unknown", "indented")
ROWS = ("cloudwatch csv", "all fields quoted")
# What does change an answer, with the reason.
KNOWN = {
    *((name, "steps-until-the-limit-in-another-time-zone") for name in TIMED),
    *(
        (name, case)
        for name in (*TIMED, "indented")
        for case in ("xids-of-another-day-and-a-bug", "xids-of-another-days-program")
    ),
    *((name, "silent-after-a-step-until-the-limit") for name in (*TIMED, "unknown")),
    ("unknown", "a-port-was-away-for-three-seconds"),  # without times
    *((name, "a-link-that-went-down-while-they-waited-for-storage") for name in UNREAD),  # without times, too
    *((name, "actors-that-may-not-read-the-model") for name in UNREAD),  # whose processes are told in front
    ("unknown", "four-tasks-that-are-a-world-of-one-each"),
    ("a second copy", "caught-out-of-memory-then-mismatch"),  # what a rank said last is kept once
    *(
        (name, case)
        for name in UNREAD
        for case in (
            "deepspeed-over-pdsh-names-hosts-by-address",
            "horovod-a-rank-finished-before-the-others",
            "a-member-of-a-horovod-set-had-a-batch-less",  # its numbers of processes
            "ranks-wait-in-two-places-of-the-program",
            "rendezvous-closed-by-those-who-ended",
        )
    ),
    *(
        (name, case)
        for name in ROWS
        for case in (
            "an-xid-in-a-monitors-record",  # a key of JSON in quotes that are doubled
            "both-ranks-in-synchronize",  # what a person typed at a prompt
            "exporter-without-profiling-metrics",
            "pace-left-after-a-checkpoint",  # rows of JSON inside
            "stack-of-one-process-that-waits",
            "steps-in-json-behind-a-warning-of-names",
        )
    ),
    *(
        ("newest first", case)
        for case in (
            # two lines, of which nothing tells their order
            *("log-ends-waiting", "mpi-reaches-another-process"),
            *("subnet-manager-dropped-a-port", "volume-of-a-pod-not-mounted", "xid-109-after-a-fault"),
            "one-of-the-ports-has-one-lane",  # so it is behind such times in their order, too
        )
    ),
    *(
        (name, case)  # RAS reports are read as they stand
        for name in ("newest first", "hard blanks")
        for case in ("ras-report-in-a-job-log",)
    ),
    ("newest first", "ras-report-without-fault"),
    ("indented", "traceback-only-in-elastic-table"),
    ("unknown", "hosts-resolve-the-master-differently"),
    ("unknown", "a-faster-interface-in-a-loop-of-ethtool"),
    ("unknown", "a-step-that-failed-in-a-job-that-sacct-calls-completed"),  # srun's numbers of tasks
    ("unknown", "what-fails-at-the-end-of-a-job-that-sacct-calls-completed"),
    ("unknown", "nvlinks-in-the-matrix-are-forbidden"),  # a table's rows behind a prefix
    ("unknown", "nodes-drained-before-the-job"),
    ("unknown", "one-host-multiplies-slowly"),
    ("unknown", "one-host-writes-slowly-in-a-list"),
    ("unknown", "sweep-whose-runs-all-fail"),  # settings behind a prefix
    ("unknown", "tasks-that-all-take-themselves-for-rank-0"),
}


def _answer(found: Explanation, ranks: bool) -> tuple[object, ...]:
    first = found.causes[:1]
    return (found.verdict, *(cause.id for cause in first), *(cause.ranks for cause in first if ranks))


@functools.cache
def _plain(path: Path) -> tuple[list[LogSource], Explanation]:
    logs = logs_of(path.read_text(encoding="utf-8").split("\n---\n", 1)[1])
    return logs, analyse(logs)


def _cases(name: str) -> list[Path]:
    """Every case, or those whose turn it is."""
    at, turns = list(CHANGES).index(name), len(CHANGES) // EACH
    every = bool(os.environ.get("NCCL_DOCTOR_EVERY_CHANGE"))
    return [path for number, path in enumerate(CASES) if every or (number + at) % turns == 0]


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_answer(name: str) -> None:
    changed = []
    for path in _cases(name):
        if name in COLLECTORS and path.stem.startswith(("debugger-", "incident-", "stacks-")):
            continue  # no collector has what a tool printed of stacks
        logs, before = _plain(path)
        after = analyse(CHANGES[name](logs))
        ranks = name in FORMS
        if (_answer(before, ranks) != _answer(after, ranks)) != ((name, path.stem) in KNOWN):
            changed.append((path.stem, _answer(before, ranks), _answer(after, ranks)))
    assert changed == []


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_packed_log_is_the_same_log(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for path in CASES[:: len(CASES) // 12]:
        logs, before = _plain(path)
        there = tmp_path / path.stem
        there.mkdir()
        for log in logs:
            (there / Path(log.name).name).with_suffix(".log.z").write_bytes(pack(str(log.content).encode()))
        if len(logs) == 1:
            assert _answer(explain_paths([str(there)]), ranks=True) == _answer(before, ranks=True), path.stem


def _job(guilty: int, ranks: int = 8) -> dict[int, str]:
    """A job in which one rank raises and the others wait for it."""
    work = "WorkNCCL(SeqNum=58, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000)"
    logs = {}
    for rank in range(ranks):
        lines = [f"[rank{rank}]: step {step} loss 2.{step}" for step in range(10, 14)]
        if rank == guilty:
            lines += [
                f"[rank{rank}]: Traceback (most recent call last):",
                f'[rank{rank}]:   File "/job/train.py", line 88, in step',
                f"[rank{rank}]:     row = table[key]",
                f"[rank{rank}]: KeyError: 'image_00931'",
            ]
        else:
            lines.append(
                f"[rank{rank}]:[E1120 03:32:42.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
                f"operation timeout: {work} ran for 600001 milliseconds before timing out."
            )
        logs[rank] = "\n".join(lines) + "\n"
    return logs


@pytest.mark.parametrize("guilty", [0, 3, 7])
def test_the_guilty_rank_is_blamed_whoever_it_is_and_however_the_logs_were_kept(guilty: int) -> None:
    logs = _job(guilty)
    lines = [log.splitlines() for log in logs.values()]
    apart = [LogSource(f"rank{rank}.log", log, rank) for rank, log in logs.items()]
    ways = {
        "a log for each rank": apart,
        "the same, in another order": apart[::-1],
        "one after the other": [LogSource("job.log", "".join(logs.values()))],
        "interleaved": [
            LogSource("job.log", "".join(f"{each[at]}\n" for at in range(8) for each in lines if at < len(each)))
        ],
    }
    for way, sources in ways.items():
        found = analyse(sources)
        assert (found.causes[0].id, found.causes[0].ranks) == ("app.rank-exception", (guilty,)), way


def test_what_only_a_files_name_says_of_its_rank_is_true_of_all_its_lines() -> None:
    """As torchrun keeps the logs of a worker (--redirects): the last words of the rank that the others wait for count."""
    work = "WorkNCCL(SeqNum=581, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    logs = {}
    for rank in range(4):
        lines = [f"2026-11-20 03:{minute:02d}:00 | INFO | step {minute} | loss 1.8" for minute in range(22)]
        if rank == 0:
            lines += [
                f"2026-11-20 03:{22 + 2 * part}:05 | INFO | saving checkpoint shard {part} of 16" for part in range(8)
            ]
        else:
            at = "[E1120 03:32:42.123456789 ProcessGroupNCCL.cpp:632]"
            lines += [
                f"{at} [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600012 milliseconds",
                f"{at} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: 581 "
                "PG status: last enqueued work: 581, last completed work: 580",
            ]
        logs[rank] = lines
    tagged = [f"[rank{rank}]: {line}" for rank, lines in logs.items() for line in lines]
    names = {rank: f"attempt_0/{rank}/stderr.log" for rank in logs}
    told = analyse([LogSource("job.log", "\n".join(tagged))])
    apart = analyse([LogSource(names[rank], "\n".join(logs[rank]), *identity(names[rank])) for rank in logs])
    for found in (told, apart):
        assert (found.causes[0].id, found.causes[0].ranks) == ("app.straggler-timeout", (0,)), found.sentence
        assert "saving checkpoint" in found.sentence


def test_a_services_line_is_no_sign_of_a_job() -> None:
    """Its job may have failed, or stand still: what a daemon has finished says nothing of that."""
    found = analyse([LogSource("services.log", SERVICES * 3)])
    assert not found.causes and not found.evidence
    lines = [line for line in SERVICES.splitlines() if ".go:" in line or re.search(r"(?:sshd|CRON|systemd)\[", line)]
    assert lines and all(bystanders.is_of_a_service(line) for line in lines)
    assert not bystanders.is_of_a_service("node-1: I1120 03:32:42.123456 77 ProcessGroupNCCL.cpp:632] step 5")
