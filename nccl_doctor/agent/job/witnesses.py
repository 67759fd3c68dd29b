"""What the libraries of a job say of themselves: NCCL's RAS service, and flight-recorder dumps that lie there."""

import base64
import errno
import glob
import os
import re
import socket
import stat
import time
import zlib
from typing import Any, Dict, List, Set, Tuple

from nccl_doctor.agent.job.processes import age_s
from nccl_doctor.agent.probing import link, path
from nccl_doctor.agent.redaction import redact_text

DUMP_LIMIT = 4 << 20  # bytes of one flight-recorder dump, and
DUMPS_LIMIT = 5 << 20  # of all of a host's, packed: a reply has 16 MiB
RAS_PORT = 28028
RAS_LIMIT_S = 6.0
RAS_BYTES = 2 << 20


def ras_reports(found: List[Dict[str, Any]], look: Dict[str, Any], interval_s: float) -> List[Dict[str, str]]:
    """Two answers of each RAS thread that a rank listens with on this host."""
    answers = []
    for address in sorted(_ras_addresses(found, look)):
        for number in range(2):
            if number:
                time.sleep(interval_s)
            try:
                answers.append({"address": "%s:%d" % address, "text": redact_text(_ask_ras(address))})
            except OSError as error:
                answers.append({"address": "%s:%d" % address, "error": error.strerror or str(error)})
    return answers


def _ras_addresses(found: List[Dict[str, Any]], look: Dict[str, Any]) -> Set[Tuple[str, int]]:
    addresses = set()
    own = link("/proc/self/ns/net")
    for process in found:
        _, _, port = process["environment"].get("NCCL_RAS_ADDR", "").rpartition(":")
        wanted = int(port) if port.isdigit() else RAS_PORT
        for entry in look["connections"].get(process["pid"], {}).values():
            at, _, number = entry["local"].rpartition(":")
            if entry["state"] == "LISTEN" and int(number) == wanted and process["namespace"] in ("", own):
                addresses.add(("127.0.0.1" if at in ("0.0.0.0", "::") else at, wanted))
    return addresses


def _ask_ras(address: Tuple[str, int]) -> str:
    """The verbose report of NCCL's RAS service, as JSON where it knows that (2.28): a protocol that only reads."""
    end = time.monotonic() + RAS_LIMIT_S
    with socket.create_connection(address, 2.0) as asked:
        asked.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 4\nSET FORMAT json\nVERBOSE STATUS\n")
        answer = b""
        while len(answer) < RAS_BYTES and time.monotonic() < end:
            asked.settimeout(max(0.1, end - time.monotonic()))
            block = asked.recv(1 << 16)
            if not block:
                break
            answer += block
    return answer.decode("utf-8", "replace")


def dumps_of(found: List[Dict[str, Any]]) -> Tuple[List[Dict[str, Any]], List[str]]:
    """The flight-recorder dumps that the ranks have written since they started, packed, and those left out."""
    dumps: List[Dict[str, Any]] = []
    problems: List[str] = []
    room = DUMPS_LIMIT
    for process in found:
        rank = process["environment"].get("RANK")
        if process["role"] != "rank" or not (rank or "").isdigit():
            continue
        name = _newest_dump(process, rank)
        if not name:
            continue
        shown = re.sub(r"^/proc/\d+/(root|cwd/)", "", name)
        try:
            # Anybody may write to /tmp: no link is followed, and no FIFO waited for.
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
                data = stream.read(DUMP_LIMIT + 1)
            packed = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
            if len(data) > DUMP_LIMIT or len(packed) > room:
                raise OSError(
                    errno.EFBIG, "larger than %d MiB, or than what is left for this host" % (DUMP_LIMIT >> 20)
                )
            room -= len(packed)
            dumps.append({"rank": int(rank), "pid": process["pid"], "path": shown, "data": packed})
        except OSError as error:
            problems.append("%s: %s" % (shown, error.strerror or error))
    return dumps, problems


def _newest_dump(process: Dict[str, Any], rank: str) -> str:
    """The rank's newest dump: a file of its own user's that is not older than the process; empty if there is none."""
    started = time.time() - age_s(process["start_ticks"]) - 1.0
    newest = (started, "")
    for prefix in process["dump_prefixes"]:
        place = "root" if prefix.startswith("/") else "cwd/"
        for name in glob.glob(glob.escape(path("/proc/%d/%s%s%s" % (process["pid"], place, prefix, rank))) + "*"):
            behind = os.path.basename(name)[len(os.path.basename(prefix)) :]
            if not re.fullmatch(re.escape(rank) + r"(\.\w{1,10})?", behind):
                continue
            try:
                known = os.lstat(name)
            except OSError:
                continue  # it has just gone
            if stat.S_ISREG(known.st_mode) and known.st_uid == process["uid"]:
                newest = max(newest, (known.st_mtime, name))
    return newest[1]
