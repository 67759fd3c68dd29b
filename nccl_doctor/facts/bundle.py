"""Reading and writing bundles: one gzip-compressed JSON document, read with limits and never extracted.

``check --save b.ndb`` today, ``check --from b.ndb`` tomorrow on a laptop: the same findings.
"""

from __future__ import annotations

import datetime
import gzip
import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import msgspec

from nccl_doctor.facts import files
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, ProbeResult

# An eight-GPU host is about 63 kB of JSON, a twelfth of it on disk: 10,000 are 630 MB from a file of 54 MB.
SMALL_BYTES = 256 << 20  # every file may unpack to this,
LIMIT_RATIO = 40  # a larger one to this many times its own size (a bomb is a thousand times its size),
LIMIT_BYTES = 2 << 30  # and none to more
PIECE_BYTES = 1 << 20  # read at once
MAGIC = b"\x1f\x8b"


class BundleError(ValueError):
    """A file that is not a readable bundle; the message says why and names the file."""


def to_bytes(bundle: Bundle) -> bytes:
    """The bundle's file content. Deterministic: equal bundles give equal bytes."""
    return gzip.compress(msgspec.json.encode(bundle, order="sorted"), compresslevel=6, mtime=0)


def write(bundle: Bundle, path: Path) -> None:
    """Write a bundle, readable by its owner alone, and never half."""
    files.write(path, to_bytes(bundle), private=True)


def read(path: Path) -> Bundle:
    """Read a bundle; ``BundleError`` for anything else: another format, a bomb, a cut file, a newer schema."""
    try:
        with path.open("rb") as stream:
            return from_bytes(_content(stream), str(path))
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror or error}") from error


def _content(stream: BinaryIO) -> bytes:
    """At most the limit, and a piece. Asked for all of that at once, Python takes the memory for it, however small the file."""
    found = bytearray()
    while len(found) <= LIMIT_BYTES and (piece := stream.read(PIECE_BYTES)):
        found += piece
        if not found.startswith(MAGIC):  # a device, a log: to be told so, not to be read
            break
    return bytes(found)


def from_bytes(content: bytes, name: str) -> Bundle:
    """Decode a bundle's file content; ``name`` is for messages."""
    if not content.startswith(MAGIC):
        raise BundleError(
            f"{name}: not a bundle (a bundle is what --save FILE of check, preflight, hang or watch writes)"
        )
    limit = min(LIMIT_BYTES, max(SMALL_BYTES, LIMIT_RATIO * len(content)))
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = unpacker.decompress(content, limit)
    except zlib.error as error:
        raise BundleError(f"{name}: damaged: {error}") from error
    if unpacker.unconsumed_tail:
        raise BundleError(f"{name}: larger than {limit >> 20} MiB unpacked: refused")
    if not unpacker.eof:
        raise BundleError(f"{name}: cut off: the end of the file is missing")
    try:
        schema = files.from_json(text, _Schema).schema
        if schema > BUNDLE_SCHEMA:
            raise BundleError(f"{name}: schema {schema} is newer than this nccl-doctor knows ({BUNDLE_SCHEMA})")
        bundle = files.from_json(text, _Read)
    except msgspec.DecodeError as error:
        raise BundleError(f"{name}: not a bundle: {error}") from error
    try:
        datetime.datetime.fromisoformat(bundle.created)
    except ValueError as error:
        raise BundleError(f"{name}: not a bundle: created: {error}") from error
    twice = [host for host, count in Counter(facts.name for facts in bundle.hosts).items() if count > 1]
    if twice:  # a gate would count it twice among the good hosts
        raise BundleError(f"{name}: not a bundle: it has {twice[0]} more than once")
    return bundle


class _Schema(msgspec.Struct):
    schema: int


# A bundle as it is read: probe data stays text until a rule asks for it as a typed fact, so that reading takes a
# third of the time, and of the memory that plain dictionaries would take.
class _ReadProbe(ProbeResult, frozen=True, omit_defaults=True):
    data: msgspec.Raw = msgspec.Raw(b"null")


class _ReadHost(HostFacts, frozen=True, omit_defaults=True):
    probes: dict[str, _ReadProbe] = msgspec.field(default_factory=dict)  # type: ignore[assignment]


class _Read(Bundle, frozen=True, omit_defaults=True):
    hosts: tuple[_ReadHost, ...]
