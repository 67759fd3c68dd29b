"""Names: what the host resolves its own and its peers' names to, the addresses it has, and its clock."""

import socket
import time
from typing import Any, Dict, List, Tuple

from nccl_doctor.agent.probing import in_parallel, probe, read_text


def _resolve(name: str) -> Dict[str, Any]:
    """What getaddrinfo says, in its order: the same call that torch and NCCL make."""
    result = {"addresses": [], "error": ""}  # type: Dict[str, Any]
    try:
        answers = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        result["error"] = str(error)
    else:
        for answer in answers:
            address = str(answer[4][0])
            if address not in result["addresses"]:
                result["addresses"].append(address)
    for number, line in enumerate((read_text("/etc/hosts") or "").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if name in words[1:] and (not result["addresses"] or words[0] in result["addresses"]):
            result["quoted"], result["line"] = line.strip(), number
            break
    return result


def _own_addresses() -> List[str]:
    """Every address of this network namespace, from the kernel's own tables (no tool needed)."""
    found = []  # type: List[str]
    for line in (read_text("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if words:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    # fib_trie lists an IPv4 address on the line above "/32 host LOCAL"
    previous = ""
    for line in (read_text("/proc/net/fib_trie") or "").splitlines():
        if "/32 host LOCAL" in line and previous not in found:
            found.append(previous)
        previous = line.split()[-1] if line.split() else ""
    return found


@probe("names", stage="connectivity", limit_s=20.0)
def names(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Resolve the host's own name and every name in ``arguments["names"]``, as the training job would.

    With ``arguments["same_as"]`` (name -> addresses, the table of the host ``arguments["reference"]``) only the names
    that resolve otherwise here are told.
    """
    own = socket.gethostname()
    wanted = list({own, *arguments.get("names", ())})

    def look_up(name: str) -> Tuple[float, Dict[str, Any]]:
        started = time.monotonic()
        answer = _resolve(name)
        return time.monotonic() - started, answer

    found = in_parallel(wanted, look_up, 16)
    took = [seconds for seconds, _ in found]
    resolved = {name: answer for name, (_, answer) in zip(wanted, found)}
    same_as = arguments.get("same_as", {})
    told = {name: resolved[name] for name in arguments.get("names", ())}
    told = {name: answer for name, answer in told.items() if answer["addresses"] != same_as.get(name)}
    result = {"host_name": own, "own": resolved[own], "resolved": told, "addresses": _own_addresses()}
    result["lookup_s"] = round(sorted(took)[len(took) // 2], 3)
    lines = (read_text("/etc/resolv.conf") or "").splitlines()
    result["resolver"] = [line.strip() for line in lines if line.startswith("nameserver")][:3]
    if same_as:
        result["reference"] = arguments["reference"]
    return result


@probe("time", stage="", limit_s=5.0)
def now(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The host's wall clock, seconds since the epoch. The controller computes the offset."""
    return {"time": time.time()}
