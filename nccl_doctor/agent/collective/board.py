"""Agreement between ranks over the TCPStore, never through the backend that is being measured."""

import datetime
import json
from typing import Any, Callable, List

from .ranks import Identity


class SizeEnded(Exception):
    """A rank had no memory for this size: it ends on all ranks, and the run goes on. The text says which rank."""


class Board:
    """Agreement between ranks over the TCPStore: publish, read, gather. Every wait has the step's limit.

    A rank that must give a size up publishes that in place of its parts in the agreements to come: then the agreement
    raises ``SizeEnded`` on every rank.
    """

    def __init__(self, store: Any, me: Identity, limit_s: float) -> None:
        self.store, self.me = store, me
        self.limit(limit_s)

    def limit(self, limit_s: float) -> None:
        """How long every wait may take from now on, in seconds."""
        self.store.set_timeout(datetime.timedelta(seconds=limit_s))

    def publish(self, key: str, value: Any) -> None:
        """Set a key for all."""
        self.store.set(key, json.dumps(value))

    def read(self, key: str) -> Any:
        """Wait for a key and read it."""
        return json.loads(self.store.get(key))

    def gather(self, key: str, value: Any) -> List[Any]:
        """Give this rank's value; rank 0 gets all ranks' values in order, the others an empty list."""
        self.publish("%s/%d" % (key, self.me.rank), value)
        if self.me.rank:
            return []
        return [self.read("%s/%d" % (key, rank)) for rank in range(self.me.world)]

    def decide(self, key: str, value: Any, choose: Callable[[List[Any]], Any]) -> Any:
        """Gather on rank 0, let it choose, and return its choice on every rank."""
        values = self.gather(key, value)
        if not self.me.rank:
            self.publish(key + "/decision", next(filter(_ended, values), None) or choose(values))
        decision = self.read(key + "/decision")
        if _ended(decision):
            raise SizeEnded(decision["ended"])
        return decision

    def give_up(self, keys: List[str], reason: str) -> None:
        """Take no further part in these agreements."""
        own = ["%s/%d" % (key, self.me.rank) for key in keys]
        for key in own + ([] if self.me.rank else [key + "/decision" for key in keys]):
            if not is_set(self.store, key):
                self.publish(key, {"ended": reason})

    def missing(self, key: str) -> List[int]:
        """Ranks that have not set their part of a key."""
        return [rank for rank in range(self.me.world) if not is_set(self.store, "%s/%d" % (key, rank))]


def is_set(store: Any, key: str) -> bool:
    """Whether a key is there, without waiting for it. (``Store.check`` came to Python with torch 2.3 only.)

    Where the key is not there, ``compare_set`` returns the value that it was told to expect.
    """
    return bool(store.compare_set(key, "?", "?") != b"?")


def _ended(value: Any) -> bool:
    return isinstance(value, dict) and "ended" in value
