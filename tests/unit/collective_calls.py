"""One rank of two, over gloo: what DDP and FSDP of this torch hand to collectives in a step. Rank 0 prints JSON.

Arguments: rank, number of ranks, file of the store. The key is "way micro-batches", the value bytes by collective.
"""

import json
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = {"allreduce_": "allreduce", "_allgather_base_": "allgather", "_reduce_scatter_base_": "reducescatter"}
LAYERS = 4


class Count(TorchDispatchMode):
    """Adds up the bytes of each collective, as nccl-tests count sizes: of all ranks' parts together."""

    def __init__(self, found: Counter) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            largest = max((leaf.numel() * leaf.element_size() for leaf in tensors), default=0)
            self.found[NAMES.get(func._opname, func._opname)] += largest
        return func(*args, **(kwargs or {}))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(LAYERS)))


def fsdp():  # type: ignore[no-untyped-def]
    whole = model()
    for layer in whole:
        fully_shard(layer)
    fully_shard(whole)
    return whole, whole.set_requires_gradient_sync


def ddp():  # type: ignore[no-untyped-def]
    whole = DistributedDataParallel(model())

    def sync(last: bool) -> None:
        whole.require_backward_grad_sync = last  # what no_sync() sets

    return whole, sync


def main() -> None:
    rank, world, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    told = {"params": sum(item.numel() for item in model().parameters()), "layers": LAYERS}
    for way in (ddp, fsdp):
        for micro_batches in (1, 3):
            wrapped, sync = way()
            found: Counter = Counter()
            with Count(found):
                for number in range(micro_batches):
                    sync(number == micro_batches - 1)
                    wrapped(torch.ones(2, 64)).sum().backward()
            told[f"{way.__name__} {micro_batches}"] = dict(found)
    if rank == 0:
        print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
