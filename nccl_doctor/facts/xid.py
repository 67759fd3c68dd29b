"""The Xid and SXid catalogues: what each number means and which action answers it. Data with source and date."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

import msgspec


class Xid(msgspec.Struct, frozen=True, rename={"kind": "class"}):
    """One Xid. ``kind``: application, driver, hardware, nvlink, fabric; ``action``: see the data file's head.

    ``finding`` is the id of the finding it becomes.
    """

    mnemonic: str
    name: str
    kind: str
    action: str
    finding: str
    note: str = ""


class SXid(msgspec.Struct, frozen=True):
    """One NVSwitch SXid; ``severity``: non-fatal, fatal, always-fatal."""

    name: str
    severity: str


def load(name: str) -> Any:
    """The parsed YAML of a data file of this package."""
    import yaml

    text = importlib.resources.files("nccl_doctor.facts").joinpath("data").joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.cache
def xids() -> dict[int, Xid]:
    """Number -> Xid."""
    return msgspec.convert(load("xid.yaml")["entries"], dict[int, Xid])


@functools.cache
def sxids() -> dict[int, SXid]:
    """Number -> SXid."""
    return msgspec.convert(load("sxid.yaml")["entries"], dict[int, SXid])
