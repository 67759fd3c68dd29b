"""Names: what the host resolves its own and its peers' names to, the addresses it has, and its clock."""

import socket
import time
from typing import Any, Dict, List, Tuple

from nccl_doctor.agent.probes.interfaces import kernel_addresses
from nccl_doctor.agent.probing import in_parallel, probe, read_text

HostsLines = Dict[str, List[Tuple[int, str, str]]]  # name -> number, address and text of each line that has it


def _hosts_lines() -> HostsLines:
    """What /etc/hosts says of each name: read once, as a cluster's may have ten thousand lines."""
    found = {}  # type: HostsLines
    for number, line in enumerate((read_text("/etc/hosts", 16 << 20) or "").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        for name in words[1:]:
            found.setdefault(name, []).append((number, words[0], line.strip()))
    return found


def _resolve(name: str, lines: HostsLines) -> Dict[str, Any]:
    """What getaddrinfo says, in its order: the same call that torch and NCCL make."""
    result = {"addresses": [], "error": ""}  # type: Dict[str, Any]
    try:
        answers = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        result["error"] = str(error)
    else:
        result["addresses"] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    for number, address, text in lines.get(name, ()):
        if not result["addresses"] or address in result["addresses"]:
            result["quoted"], result["line"] = text, number
            break
    return result


@probe("names", stage="connectivity", limit_s=20.0)
def names(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Resolve the host's own name and every name in ``arguments["names"]``, as the training job would.

    With ``arguments["same_as"]`` (name -> addresses, the table of the host ``arguments["reference"]``) only the names
    that resolve otherwise here are told.
    """
    own = socket.gethostname()
    wanted, lines = list({own, *arguments.get("names", ())}), _hosts_lines()

    def look_up(name: str) -> Tuple[float, Dict[str, Any]]:
        started = time.monotonic()
        answer = _resolve(name, lines)
        return time.monotonic() - started, answer

    found = in_parallel(wanted, look_up, 16)
    took = [seconds for seconds, _ in found]
    resolved = {name: answer for name, (_, answer) in zip(wanted, found)}
    same_as = arguments.get("same_as", {})
    told = {name: resolved[name] for name in arguments.get("names", ())}
    told = {name: answer for name, answer in told.items() if answer["addresses"] != same_as.get(name)}
    result = {"host_name": own, "own": resolved[own], "resolved": told}
    result["addresses"] = [address["address"] for address in kernel_addresses() if address["up"]]
    result["lookup_s"] = round(sorted(took)[len(took) // 2], 3)
    configured = (read_text("/etc/resolv.conf") or "").splitlines()
    result["resolver"] = [line.strip() for line in configured if line.startswith("nameserver")][:3]
    if same_as:
        result["reference"] = arguments["reference"]
    return result


@probe("time", stage="", limit_s=5.0)
def now(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The host's wall clock, seconds since the epoch. The controller computes the offset."""
    return {"time": time.time()}
