"""Ports for the tests' own servers."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody has, below those that the kernel gives to outgoing connections: it stays free for a while."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
