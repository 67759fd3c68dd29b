"""Stops trying after repeated authentication failures, so that a wrong key locks no account on 500 hosts."""

from __future__ import annotations

import threading

from nccl_doctor.facts.model import ReachOutcome
from nccl_doctor.transport.base import Deadline, Unreachable


class AuthGate:
    """Asks at most ``limit`` hosts until one has accepted a user; when all of these refuse, no more are asked.

    Counted per user name: that is what directories lock. Once one host has accepted, the way is free.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._asking: dict[str, int] = {}
        self._refused: dict[str, list[str]] = {}
        self._accepted: set[str] = set()

    def enter(self, user: str, deadline: Deadline) -> None:
        """Wait for one's turn; raises :class:`Unreachable` (not tried) when the gate is closed."""
        with self._changed:
            while user not in self._accepted:
                refused = self._refused.get(user, [])
                if len(refused) >= self._limit:
                    names = ", ".join(refused[: self._limit])
                    detail = (
                        f"not tried: the first {len(refused)} hosts refused the login; an account must not be locked"
                    )
                    raise Unreachable(ReachOutcome.NOT_TRIED, detail, f"refused by {names}")
                if self._asking.get(user, 0) + len(refused) < self._limit:
                    break
                if not self._changed.wait(deadline.left(60.0)) and deadline.passed:
                    raise Unreachable(ReachOutcome.NOT_TRIED, "the run's deadline passed before its turn")
            self._asking[user] = self._asking.get(user, 0) + 1

    def leave(self, user: str, host: str, outcome: ReachOutcome) -> None:
        """Say how it went: ``ok``, ``auth-failed``, or anything else (which proves nothing about the login)."""
        with self._changed:
            self._asking[user] -= 1
            if outcome is ReachOutcome.OK:
                self._accepted.add(user)
            elif outcome is ReachOutcome.AUTH_FAILED:
                self._refused.setdefault(user, []).append(host)
            self._changed.notify_all()
