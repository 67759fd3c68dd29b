"""Keep what an incident printed as a case file, with everything of this machine taken out."""

from __future__ import annotations

import getpass
import platform
import re
import socket
import sys
from pathlib import Path

from tests.incidents.catalogue import Incident

CASES = Path(__file__).parents[1] / "cases" / "explain"
LIMIT = 30_000  # bytes of log per case


def write(incident: Incident, logs: Path) -> Path | None:
    """Write ``incident-<name>.md``; the files of ``logs`` become its fenced blocks, neutral and cut to ``LIMIT``."""
    if not incident.recorded:
        return None
    files = sorted(path for path in logs.rglob("*") if path.is_file() and path.suffix in (".log", ""))
    texts = {
        str(path.relative_to(logs)): neutral(path.read_text(errors="replace"), logs.parent)
        for path in files
        if _text(path)
    }
    texts = {_short(name): text for name, text in texts.items() if text.strip()}
    share = LIMIT // max(1, len(texts))
    blocks = [f"```log {name}\n{trimmed(text, share).rstrip()}\n```\n" for name, text in texts.items()]
    head = [
        "---",
        f"name: incident-{incident.name}",
        f"cause: {incident.cause}",
        f"acceptable: [{', '.join(incident.acceptable)}]",
        f"evidence: {_quoted(incident.evidence)}",
        f"undecidable: {str(incident.undecidable).lower()}",
        "source: provoked with tests/incidents, torch 2.13.0, backend gloo",
        "---",
    ]
    target = CASES / f"incident-{incident.name}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(head) + "\n" + "\n".join(blocks))
    return target


def _text(path: Path) -> bool:
    return b"\0" not in path.read_bytes()[:1024] and not path.read_bytes().startswith(b"\x80")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _short(name: str) -> str:
    """torchrun's `<run id>/attempt_0/1/stderr.log` as `rank1.err`."""
    found = re.search(r"attempt_\d+/(\d+)/(std(?:out|err))\.log$", name)
    return f"rank{found.group(1)}.{found.group(2)[3:]}" if found else name


def neutral(text: str, directory: Path) -> str:
    """Without paths, host and user of the machine it was recorded on."""
    text = text.replace(str(directory / "train"), "/srv/train").replace(
        str(directory / "checkpoints"), "/srv/checkpoints"
    )
    text = text.replace(str(directory / "logs"), "/srv/logs").replace(str(directory), "/srv")
    text = text.replace(sys.prefix, "/opt/python").replace(sys.base_prefix, "/opt/python3.11")
    text = text.replace(platform.release(), "6.1.0-28-amd64")
    host = socket.gethostname()
    if len(host) > 3:
        text = text.replace(host, "node01")
    text = re.sub(rf"(host\s+: ){re.escape(host)}\b", r"\1node01", text)
    text = re.sub(rf"\b{re.escape(socket.getfqdn())}\b", "node01", text)
    return re.sub(rf"/home/{re.escape(getpass.getuser())}\b", "/home/user", text)


def trimmed(text: str, limit: int) -> str:
    """The first and the last lines, if the text is too long; the gap says how many lines it hides."""
    if len(text.encode()) <= limit:
        return text
    lines = text.splitlines()
    kept = [0, 0]
    size = 0
    while size < limit - 200:
        side = 0 if kept[0] <= kept[1] else 1
        line = lines[kept[0]] if side == 0 else lines[-1 - kept[1]]
        size += len(line.encode()) + 1
        kept[side] += 1
    left_out = len(lines) - kept[0] - kept[1]
    return "\n".join([*lines[: kept[0]], f"[... {left_out} lines left out ...]", *lines[len(lines) - kept[1] :]])
