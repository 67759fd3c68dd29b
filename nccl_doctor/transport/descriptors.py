"""How many files this process may have open: a connection is one, a local program three, and 1,024 are common."""

from __future__ import annotations

import resource

_AT_START = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def make_room(hosts: int) -> None:
    """Raise the soft limit as far as so many hosts need it, and the hard one lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 512 + 4 * hosts if hard == resource.RLIM_INFINITY else min(512 + 4 * hosts, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def as_started() -> None:
    """Take that back in a child between fork and exec: srun hands its limits on to the hosts, where they are judged."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_AT_START, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
