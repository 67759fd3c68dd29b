"""Whatever a log holds: linear time, no control of the terminal, valid JSON."""

from __future__ import annotations

import functools
import io
import json
import re
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from nccl_doctor.explain import trouble
from nccl_doctor.explain.api import explain
from nccl_doctor.explain.diagnoses import speed
from nccl_doctor.explain.model import LogSource
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.kept import QUOTE_LIMIT
from nccl_doctor.explain.readers.scan import LINE_LIMIT, scan
from nccl_doctor.explain.signatures import all_signatures
from nccl_doctor.explain.summary import Summary
from nccl_doctor.report.explanation import to_json
from nccl_doctor.report.explanation_text import print_explanation
from tests.unit.explained import explain_text

_EVIL = (
    "\x1b]0;owned\x07\x1b[2J[bold red]x[/] [link=file:///etc/passwd]y[/link] \u202egnp\x9b31m \u200b \x00"
    " KeyError: 'LOCAL_RANK' \x1b]52;c;AAAA\x07"
)


def _printed(text: str | bytes) -> str:
    out = io.StringIO()
    print_explanation(explain_text(text, "evil\x1b[31m.log"), Console(file=out, width=200, force_terminal=False))
    return out.getvalue()


def test_quotes_cannot_drive_the_terminal() -> None:
    shown = _printed(f"[rank0]: {_EVIL}\n" * 3)
    assert not any(ord(char) < 0x20 and char != "\n" for char in shown)
    assert not any(char in shown for char in "\x7f\x9b\u202e\u200b")
    assert "[link=file:///etc/passwd]" in shown  # markup is text


def test_json_is_valid_whatever_the_bytes() -> None:
    document = json.loads(to_json(explain_text(b"\xff\xfe\x00 EADDRINUSE \xed\xa0\x80\n" + _EVIL.encode())))
    assert document["verdict"] == "cause-found"
    assert {"causes", "consequences", "next", "versions"} <= set(document)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_survived(data: bytes) -> None:
    json.loads(to_json(explain_text(data)))


def _of_digits(digits: str) -> list[str]:
    """Every message with a number that nothing counts to, where it has a number."""
    texts = [template.text for signature in all_signatures().values() for template in signature.templates]
    filled = [
        re.sub(r"\{[a-z_]*:(?:int|num|hex)\}", digits, text) for text in texts if re.search(":(?:int|num|hex)}", text)
    ]
    prefixes = (
        "[rank{}]: ",
        "rank {}: ",
        "[1,{}]<stdout>: ",
        "{}: ",
        "[default{}]:",
        "[{}] ",
        "(Worker rank={} pid=7) ",
        "[PG ID 0 Rank {}] ",
    )
    return [re.sub(r"\{[^}]*\}", "x", text) for text in filled] + [
        prefix.replace("{}", digits) + "RuntimeError: it failed" for prefix in prefixes
    ]


@pytest.mark.parametrize(
    "told",
    [
        "Effective Physical BER : 3E-09",
        "mlx5_core 0000:1a:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:17:00.0 "
        "(capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
        "MnClk/Rnk: 1095MHz/45 | MxClk/Rnk: 1980MHz/3",
    ],
)
def test_a_number_behind_the_end_of_a_quote_is_survived(told: str) -> None:
    for before in range(QUOTE_LIMIT - len(told), QUOTE_LIMIT + 1, 8):
        assert explain_text("x" * before + " " + told + "\n").read.lines == 1


@pytest.mark.parametrize(
    "line",
    [
        "USER  PID TPPID CMD",
        json.dumps({"log": 'KeyError: 1,\r,"KeyError: 2"'}),
        'KeyError: 1,\0,"KeyError: 2"',
    ],
    ids=["a-heading-without-its-column", "a-CR-in-a-row", "a-NUL-in-a-row"],
)
def test_what_only_looks_like_a_table_is_survived(line: str) -> None:
    assert explain_text(f"{line}\nroot 1 2 a\n").read.lines == 2


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000])
def test_a_number_that_nothing_counts_to_is_survived(digits: str) -> None:
    """Python refuses to read more than 4,300 digits, and summaries are sent with at most 64 bits."""
    lines = _of_digits(digits)
    for at in range(0, len(lines), 40):
        summary = scan(LogSource("log", "\n".join(lines[at : at + 40])))
        json.loads(to_json(explain(msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=Summary))))


def test_a_digit_that_counts_nothing_is_survived() -> None:
    """Python calls a superscript a digit, and reads no number in it."""
    texts = [template.text for signature in all_signatures().values() for template in signature.templates]
    lines = [re.sub(r"\{[^}]*\}", "\u00b2", text) for text in texts]
    lines += [f"n1:8:80 [0] NCCL INFO {name} set by environment to \u00b2" for name in ("NCCL_IB_TIMEOUT", "NCCL_NET")]
    lines += ["NET/IB : Got completion from peer 10.0.0.2<4711> with status=12 opcode=0 len=0 vendor err 129 (Send)"]
    lines += [
        "torchrun --nnodes=\u00b2 train.py",
        "n1:8:80 [0] NCCL INFO comm 0x1 rank \u00b2 nranks \u00b2 Init START",
    ]
    assert explain_text("\n".join(lines)).causes


def test_a_job_of_any_size_is_survived() -> None:
    """Whoever lists the ranks of a job counts them first."""
    lines = (
        f"g1:8:80 [0] NCCL INFO comm 0x1 rank 0 nranks {'9' * 18} cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - Init START",
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error [10.0.0.2]:4711: Connection reset by "
        "peer",
        "[rank0]: torch.distributed.DistStoreError: Socket Timeout",
    )
    assert explain_text("\n".join(lines)).causes


def _seconds(call: object, line: str) -> float:
    started = time.process_time()
    call(line)  # type: ignore[operator]
    return time.process_time() - started


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "x1:",
        "  ",
        "\t1",
        "count" + " " * LINE_LIMIT,
        "| ",
        "11:",
        "in use.",
        "ufw ",
        "tcp_ep a ",
        "NVLink ",
        "NO-CARRIER ",
    ],
    ids=lambda piece: piece[:12].strip() or "blanks",
)
def test_no_guard_is_worse_than_linear(piece: str) -> None:
    """What stands behind a message decides whether it is one; each of these once took 30 ms to 1 s in a line of 8 KiB."""
    limit = 4 * LINE_LIMIT
    behind = (" " + piece * (limit // len(piece)))[:limit]
    slow = []
    for signature in all_signatures().values():
        text = re.sub(r"\{[^}]*\}", "7", signature.templates[0].text) + behind
        groups = dict.fromkeys(re.findall(r"\{([a-z_]+)[:}]", signature.templates[0].text), "7")
        calls = [
            *([functools.partial(signature.where, groups)] if signature.where else []),
            *([signature.pattern.search] if signature.pattern else []),
        ]
        if any(min(_seconds(call, text) for _ in range(2)) > 0.3 for call in calls):
            slow.append(signature.name)
    assert not slow


def _adversarial() -> list[tuple[str, object, str]]:
    """For each signature, a line that repeats the beginning of each of its texts."""
    cases = []
    for signature in all_signatures().values():
        for template in signature.templates:
            piece = template.text.split("{")[0] or template.anchor
            cases.append((f"{signature.name}: {template.text[:40]}", signature.match, piece))
    return cases


def test_no_pattern_is_worse_than_linear() -> None:
    """Doubling an adversarial line may not much more than double the time, as often as it is looked at; judged on the slowest patterns."""

    def worse(call: object, text: str) -> bool:
        once = min(_seconds(call, text) for _ in range(3))
        return once > 0.005 and min(_seconds(call, text * 2) for _ in range(3)) > 3.2 * once

    slow = []
    for name, call, piece in _adversarial():
        short = (piece * (LINE_LIMIT // len(piece) + 1))[:LINE_LIMIT]
        once = min(_seconds(call, short) for _ in range(2))
        if once > 0.01 and all(worse(call, short) for _ in range(4)):  # four times: a busy machine is slow now and then
            slow.append(name)
    assert not slow


@pytest.mark.parametrize(
    "text", ["[" * 8192, "(" * 8192, "1:" * 4096, "a-1: " * 1600, "[rank1]" * 1100, "\x1b[" * 4096, "0" * 8192]
)
def test_prefixes_are_linear(text: str) -> None:
    half = text[: len(text) // 2]
    one = min(_seconds(prefix.parse, half) for _ in range(3))
    two = min(_seconds(prefix.parse, text) for _ in range(3))
    assert two < 0.01 or two < 4 * one


def test_a_heading_with_many_blanks_takes_no_time() -> None:
    """The pattern that tells the headings of compared releases once took half a second for this line."""
    letters, blanks = (
        min(_seconds(explain_text, f"=== torch{fill * 8000}!\n") for _ in range(3)) for fill in ("x", " ")
    )
    assert blanks < 0.1 + 2 * letters


def test_blanks_before_a_word_of_trouble_take_no_time() -> None:
    """A line of 8,000 once took two seconds."""
    assert _seconds(trouble.sounds_bad, " " * 8000 + "error;") < 0.5


@pytest.mark.parametrize("pattern", [speed._WITH_UNIT, speed._OWN], ids=["expected", "own"])
def test_long_numbers_take_no_time(pattern: re.Pattern[str]) -> None:
    """Each of these once took seconds."""
    assert _seconds(pattern.search, "1" * 8000) < 0.5


def test_secrets_in_logs_are_not_passed_on() -> None:
    token = "hf_" + "A" * 34
    text = f"[rank0]: KeyError: 'LOCAL_RANK' HF_TOKEN={token} https://me:hunter2secret@host/x\n"
    got = explain_text(text)
    everything = to_json(got) + _printed(text)
    assert got.causes[0].id == "launch.env-missing"
    assert token not in everything
    assert "hunter2secret" not in everything
