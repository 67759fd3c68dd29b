"""A small gloo job that does as it is told: training.py DIRECTORY, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

The file DIRECTORY/rank-N holds what rank N is to do at its next step: ``sleep`` (until SIGUSR1), ``checkpoint`` (to the
FIFO DIRECTORY/checkpoint), ``message`` (wait for one of the next rank, which sends none) or ``data`` (its DataLoader's
worker reads the FIFO DIRECTORY/data). DIRECTORY/last-wait sends all ranks to the store, to wait there for ever.
DIRECTORY/steps-N says how many steps rank N has taken.
"""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

PLACE = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
ORDER = PLACE / f"rank-{RANK}"


class WokenUp(Exception):
    """SIGUSR1 came."""


class Numbers(IterableDataset):
    def __iter__(self):
        while True:
            if (PLACE / f"data-{RANK}").exists():
                read_sample()
            yield torch.ones(8)


def read_sample():
    (PLACE / "data").read_bytes()


def evaluate_alone():
    with contextlib.suppress(WokenUp):
        time.sleep(3600)


def save_checkpoint(tensor):
    with (PLACE / "checkpoint").open("wb") as stream:
        torch.save(tensor, stream)


def receive(tensor):
    dist.recv(tensor, src=(RANK + 1) % dist.get_world_size())


def wake_up(*_):
    if sys._getframe(1).f_code is evaluate_alone.__code__:
        raise WokenUp


def train():
    signal.signal(signal.SIGUSR1, wake_up)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    store = dist.distributed_c10d._get_default_store()
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=RANK == 1))
    gradient = torch.ones(1 << 14)
    step = 0
    while not leave(gradient):
        next(batches)
        order = ORDER.read_text().strip() if ORDER.exists() else ""
        if order:
            ORDER.unlink()
        if order == "sleep":
            evaluate_alone()
        elif order == "checkpoint":
            save_checkpoint(gradient)
        elif order == "message":
            receive(gradient)
        time.sleep(0.01)
        step += 1
        (PLACE / f"steps-{RANK}").write_text(str(step))
    store.wait(["never"], timedelta(hours=1))


def leave(gradient):
    """Whether rank 0 saw the order to leave: all ranks learn it in the same step."""
    gradient.fill_(float(RANK == 0 and (PLACE / "last-wait").exists()))
    dist.all_reduce(gradient)
    return bool(gradient[0])


train()
