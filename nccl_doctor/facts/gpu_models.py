"""The catalogue of GPU models: compute capability, NVLinks, number formats, speed, the adapter beside each GPU."""

from __future__ import annotations

import functools
import re

import msgspec

from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.xid import DATA


class GpuModel(msgspec.Struct, frozen=True):
    """One model. ``nvlinks`` are up on a healthy module; a bridge adds some to a PCIe card.

    TFLOPS are dense tensor-core rates at boost clock from the data sheet; None where they are not published.
    """

    match: str
    capability: str
    nvlinks: int | None
    bf16: bool
    fp8: bool
    bf16_tflops: float | None
    fp16_tflops: float | None = None
    rail_gbps: float | None = None  # the adapter beside each GPU of the usual server of eight, in Gbit/s
    c2c: bool = False  # joined to its CPU by NVLink-C2C: PCIe is the side door, and its memory may be a NUMA node

    @property
    def tflops(self) -> float | None:
        """The catalogue speed for training: BF16, or FP16 where the model has no BF16."""
        return self.bf16_tflops if self.bf16_tflops is not None else self.fp16_tflops


_VGPU = re.compile(r"-[0-9]+(-[0-9]+)?[ABCQ](ME)?$")  # the profile at the end of a vGPU's name


@functools.cache
def models() -> tuple[GpuModel, ...]:
    """All models, in the order in which they are matched."""
    return msgspec.convert(read_yaml(DATA / "gpu_models.yaml")["models"], tuple[GpuModel, ...])


@functools.lru_cache(maxsize=256)
def find(name: str | None) -> GpuModel | None:
    """The model behind a name as NVML gives it (``NVIDIA H100 80GB HBM3``); None if the catalogue has none.

    A vGPU (``NVIDIA H200-141C``) is a share of a GPU, with what its host gives it: no model of its own.
    """
    if _VGPU.search(name or ""):
        return None
    bare = (name or "").removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    for model in models():
        rest = bare[len(model.match) :]
        if bare.lower().startswith(model.match.lower()) and not rest[:1].isalnum():
            return model
    return None
