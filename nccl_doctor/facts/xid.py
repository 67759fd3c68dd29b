"""The Xid and SXid catalogues: what each number means and which action answers it. Data with source and date."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from nccl_doctor.facts.files import read_yaml

DATA = Path(__file__).parent / "data"


class Xid(msgspec.Struct, frozen=True, rename={"kind": "class"}):
    """One Xid. ``mnemonic``: NVIDIA's name of it, which people search for; ``kind``: application, driver, hardware, nvlink,
    fabric; ``action``: see the data file's head; ``finding``: the id of the finding it becomes.
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


@functools.cache
def xids() -> dict[int, Xid]:
    """Number -> Xid."""
    return msgspec.convert(read_yaml(DATA / "xid.yaml")["entries"], dict[int, Xid])


@functools.cache
def sxids() -> dict[int, SXid]:
    """Number -> SXid."""
    return msgspec.convert(read_yaml(DATA / "sxid.yaml")["entries"], dict[int, SXid])
