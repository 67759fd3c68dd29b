"""Lines inside lines: structured loggers, and prefixes that no list knows.

Two things stand between a program's text and a reader. A logger that writes one JSON object per line (docker's
``json-file``, structlog, python-json-logger, loguru's ``serialize``, Kubernetes collectors) escapes the text and can hide
a whole traceback in one line; :func:`unwrap` gives the lines back. And a collector, or a company's own log format, puts a
prefix before every line that :mod:`prefix` does not know; :class:`Leads` learns it from the one line whose text is
certain, ``Traceback (most recent call last):``, and takes it off the lines that follow.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

from nccl_doctor.explain.readers import prefix

# The fields that hold what the program said, by loggers and by what clouds and collectors hand out (Google's textPayload,
# CloudWatch's @message, the journal's MESSAGE, Splunk's _raw, Azure's LogEntry and LogMessage, OpenTelemetry's stringValue);
# a record can have a message and an exception.
_TEXT = re.compile(
    r'"(?:@?message|msg|log|event|text|line|exc_info|exc_text|exception|stack|stack_trace|stacktrace|traceback|py_callstack|'
    r'textPayload|MESSAGE|_raw|LogEntry|LogMessage|stringValue)"'
    r'\s*:\s*"((?:[^"\\]|\\.)*)'
)
_ERROR = re.compile(r'"err(?:or|_msg)?"\s*:')
_RANK = re.compile(r'"(?:rank|global_rank|RANK|process_rank)"\s*:\s*"?(\d{1,6})\b')
_HOST = re.compile(r'"(?:hostname|host|node|node_name|nodename|pod|pod_name|_HOSTNAME)"\s*:\s*"([\w.-]{1,80})"')
WHEN = re.compile(
    r'"(?:time|ts|timestamp|@timestamp|asctime|datetime|TimeGenerated)"\s*:\s*"(\d{4}-\d\d-\d\d[T ][\d:.,]{8,18})'
)
# A row whose last field is quoted, as log services hand them out: no blank behind a comma, quotes inside a field are doubled.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}Z?|1[5-9]\d{11}")
_QUOTED = r'"(?:[^"]|"")*"'
_ROW = re.compile(rf'(?:(?:(?! )[^",]*|{_QUOTED}),){{1,40}}{_QUOTED}')
_FIELD = re.compile(rf'(?:^|,)({_QUOTED}|[^",]*)')
MOST_LINES = 400  # of one record: a traceback is seldom longer

# No number has so many digits. Python reads no whole number of more than 4,300, and a float of more than 308 is infinite.
_NO_NUMBER = 300
_DIGITS = re.compile(rf"(?<!\d)(\d{{18}})\d{{{_NO_NUMBER - 18},}}")


def plain(raw: bytes) -> str:
    """A raw line as text: undecodable bytes as surrogates, no colours, no endless digits, of a line with CRs the last piece."""
    text = raw.rstrip(b" \t\r\n").decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if "\x1b" in text:
        text = prefix.ANSI.sub("", text)
    if "\r" in text:
        pieces = [piece for piece in text.split("\r") if piece.strip()]
        text = pieces[-1] if pieces else ""
    return text if len(text) < _NO_NUMBER else _DIGITS.sub(r"\1…", text)


def texts(raw: bytes) -> list[str]:
    """The lines that a raw line holds: itself, or those of its JSON record."""
    return unwrap(plain(raw))


def unwrap(text: str) -> list[str]:
    """The lines that a JSON record holds, each with the record's time, rank and host in front; of a row of CSV the fields with
    several words, and the last one, with the time in front; else the line itself."""
    if text.endswith('"') and _ROW.fullmatch(text):
        fields = _FIELD.findall(text)  # not csv's: it raises at a CR, and at a NUL
        *others, last = (field[1:-1].replace('""', '"') if field.startswith('"') else field for field in fields)
        times = [f"{_time(field)} " for field in others if _TIME.fullmatch(field)]
        said = [*(field for field in others if " " in field and not _TIME.fullmatch(field)), last]
        return ["".join([*times[:1], inner]) for field in said for inner in unwrap(field)]
    start = text.find('{"', 0, 256)
    if start < 0:
        start = text.find('"py_callstack"', 0, 256)  # torchelastic's error file, printed over several lines
    if start < 0:
        return [text]
    pieces: list[str] = []
    for found in _TEXT.finditer(text, start):
        piece = _unescaped(found.group(1))
        if not any(piece in other for other in pieces):
            pieces.append(piece)
    if not pieces:
        return [text]
    if not any(pieces) and _ERROR.search(text) is None:
        return [""]  # the program printed an empty line; the severity is the stream's
    lead = _lead(text, start)
    lines = [line for piece in pieces for line in re.split(r"\r?\n", piece) if line.strip()]
    lines = [inner for line in lines for inner in unwrap(line)]  # docker's record of a program's own
    return [lead + line for line in lines[:MOST_LINES]] or [text]


def _time(field: str) -> str:
    """A field that holds a time: CloudWatch counts milliseconds."""
    return datetime.fromtimestamp(int(field) / 1000, timezone.utc).isoformat() if field.isdigit() else field


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:  # the line was cut inside an escape
        return text.replace("\\n", "\n").replace('\\"', '"')


def _lead(text: str, start: int) -> str:
    when = WHEN.search(text, start)
    rank = _RANK.search(text, start)
    host = _HOST.search(text, start)
    lead = text[:start]
    lead += f"[{when.group(1)}] " if when else ""
    lead += f"[pod/{host.group(1)}/-] " if host else ""
    return lead + (f"[rank{rank.group(1)}]: " if rank else "")


MARK = "Traceback (most recent call last)"
_VARIES = re.compile(r"(?P<level>\b(?:INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|DEBUG)\b\s*)|[0-9a-f]*\d[0-9a-f]*")
_BOX = "╭┌─━+-= "
_BOXED = re.compile("[╭┌].*")  # from here on rich draws, in its own way in each line
_NOTEBOOK = re.compile(
    r"[A-Za-z_][\w.]{0,80}?(?:Error|Exception|Interrupt|Exit|Warning)\s{4,}$"
)  # IPython's headline names the exception
MOST_LEADS = 16
LONGEST_LEAD = 160


class Leads:
    """The unknown prefixes of one log, learned from where its tracebacks begin."""

    def __init__(self) -> None:
        self._known: dict[str, re.Pattern[str]] = {}

    def learn(self, body: str) -> tuple[str, str]:
        """What stands before ``Traceback``: the prefix of its process, and the mere indentation of its lines.

        Numbers and log levels of a prefix may differ in the lines that follow, the rest may not.
        """
        lead = body[: body.find(MARK)].removesuffix("Original ")  # a DataLoader's worker tells its own traceback
        lead = _BOXED.sub("", lead)
        headline = _NOTEBOOK.search(lead)
        lead = lead[: headline.start()] if headline else lead
        bare = lead.strip()
        if not bare:
            return "", lead
        if bare == "traceback :":  # torchrun's table: what follows is indented by two
            return "", "  "
        if not lead.strip(_BOX) or len(lead) > LONGEST_LEAD:
            return "", ""
        if lead not in self._known and len(self._known) < MOST_LEADS:
            self._known[lead] = re.compile(_shape(lead))
        return (lead, "") if lead in self._known else ("", "")

    def split(self, body: str) -> tuple[str, str]:
        """The learned prefix of a line (or the one of its shape), and the rest of the line."""
        for lead in self._known:
            if body.startswith(lead):
                return lead, body[len(lead) :]
        for lead, pattern in self._known.items():
            found = pattern.match(body)
            if found:
                return lead, body[found.end() :]
        return "", body


def begins_with(lead: str, prefix: str) -> bool:
    """Whether what stood before a ``Traceback`` begins with a prefix of this shape."""
    return re.match(_shape(prefix), lead) is not None


def _shape(lead: str) -> str:
    pieces = []
    at = 0
    for found in _VARIES.finditer(lead):
        pieces.append(re.escape(lead[at : found.start()]))
        pieces.append(r"[A-Z]+\s*" if found.group("level") else r"[0-9a-f]+")
        at = found.end()
    end = lead[at:].rstrip()  # an empty line of the text leaves no blank behind the prefix
    return "".join(pieces) + re.escape(end) + (r"\s?" if end != lead[at:] else "")
