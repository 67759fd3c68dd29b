"""``python -m tests.gpu.blocked``: a world in a network of its own, in which every port but the store's is dropped.

For a private network namespace (``unshare --net``): nothing of the machine's own network is touched. Prints the facts.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from nccl_doctor.agent.collective import launch
from tests.gpu import worlds


def main() -> None:
    """Bring the loopback up, drop what is not for the store, run two ranks."""
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "addr", "add", "10.99.0.1/24", "dev", "lo"],
    ):
        subprocess.run(command, check=True)
    port = launch.free_port()
    rules = (
        "add table inet blocked; add chain inet blocked in { type filter hook input priority 0 ; }; "
        f"add rule inet blocked in tcp dport {port} accept; add rule inet blocked in tcp sport {port} accept; "
        "add rule inet blocked in ip protocol tcp drop"
    )
    subprocess.run(["nft", rules], check=True)
    fact, _ = worlds.run(master_port=port, limit_s=20.0, env={"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"})
    sys.stdout.buffer.write(msgspec.json.encode(fact))


main()
