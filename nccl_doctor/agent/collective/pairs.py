"""The rate of pairs of hosts, each host in one pair at a time: a round-robin tournament of the hosts' first ranks."""

import os
import socket
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .ranks import Identity
from .world import boot_id

if TYPE_CHECKING:
    from .worker import Worker

ROUNDS = 8  # of the tournament, at most
PAUSE_S = 0.1  # between two measurements, twice as long each time
ENOUGH_S = 0.4  # what took this long was no moment's hiccup: it need not be measured again


def measure(worker: "Worker") -> None:
    """Every rank takes part: all agree on what comes next.

    Where a pair comes out far slower than the others, all are measured again, up to five times and after longer
    and longer pauses, and the best counts: a host that is busy for a second is not a slow link.
    """
    board, progress, me = worker.board, worker.progress, worker.me.rank
    leaders = board.decide("links/leaders", _leader_key(worker.identity), _first_of_each)
    if len(leaders) < 2:
        return
    count = max(1, int(worker.plan["links"]) // worker.item_bytes)
    send = worker.torch.zeros(count, dtype=worker.dtype, device=worker.device)
    receive = worker.torch.empty_like(send)
    best: Dict[Tuple[int, int], float] = {}
    for attempt in range(5):
        time.sleep(PAUSE_S * 2**attempt if attempt else 0.0)
        for number, pairs in enumerate(tournament(leaders)[:ROUNDS]):
            peer = next((b if a == me else a for a, b in pairs if me in (a, b)), None)
            detail = "exchange with rank %d" % peer if peer is not None else "waiting for other pairs"
            progress.stage("links", worker.limit_s, detail)
            mine = exchange(worker, send, receive, peer) if peer is not None else None
            progress.stage("links", worker.limit_s, "waiting for other pairs")
            key = "links/%d/%d" % (attempt, number)
            seconds = board.gather(key, mine)
            board.decide(key + "/end", True, lambda values: True)
            for first, second in pairs if not me else ():
                slower = max(seconds[first], seconds[second])
                best[first, second] = min(slower, best.get((first, second), slower))
        ordered = sorted(best.values())
        uneven = bool(ordered) and ENOUGH_S > ordered[-1] > 1.7 * ordered[len(ordered) // 2]
        if not board.decide("links/%d/again" % attempt, uneven, lambda values: values[0]):
            break
    for (first, second), slower in sorted(best.items()):
        progress.tell("link", first=first, second=second, size=count * worker.item_bytes, seconds=slower)


def exchange(worker: "Worker", send: Any, receive: Any, peer: int) -> float:
    """Seconds of the best of four exchanges with a peer, fewer where they take long."""
    best = float("inf")
    # NCCL connects two ranks when they first exchange something, which takes longer than what is to be measured.
    _either(worker, False, peer)
    begun = time.monotonic()
    for _ in range(4):
        started = time.perf_counter()
        swap(worker, send, receive, peer)
        best = min(best, time.perf_counter() - started)
        if _either(worker, time.monotonic() - begun > ENOUGH_S, peer):
            break
    return best


def swap(worker: "Worker", send: Any, receive: Any, peer: int) -> None:
    """Send to a peer and receive from it, both at once."""
    dist = worker.dist
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, send, peer), dist.P2POp(dist.irecv, receive, peer)])
    for work in works:
        work.wait()
    worker.wait()


def _either(worker: "Worker", mine: bool, peer: int) -> bool:
    """Whether this rank or its peer says so. By its own clock alone, one would go on and wait for the other for ever."""
    said = worker.torch.full((1,), int(mine), dtype=worker.dtype, device=worker.device)
    heard = worker.torch.empty_like(said)
    swap(worker, said, heard, peer)
    return mine or bool(heard.item())


def tournament(players: List[int]) -> List[List[Tuple[int, int]]]:
    """Round-robin rounds (circle method): in each, everybody meets at most one other."""
    seats: List[Optional[int]] = list(players)
    if len(seats) % 2:
        seats.append(None)
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = [(seats[i], seats[-1 - i]) for i in range(len(seats) // 2)]
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _leader_key(me: Identity) -> List[Any]:
    return [socket.gethostname(), boot_id(), os.environ.get("NCCL_HOSTID", ""), me.rank]


def _first_of_each(values: List[List[Any]]) -> List[int]:
    seen, leaders = set(), []
    for host, boot, claimed, rank in values:
        if (host, boot, claimed) not in seen:
            seen.add((host, boot, claimed))
            leaders.append(rank)
    return leaders
