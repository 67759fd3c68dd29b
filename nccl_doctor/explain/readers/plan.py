"""What is looked for in the lines of a log: the signatures' anchors, and which signatures each of them wakes up."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

from nccl_doctor.explain import matcher
from nccl_doctor.explain.readers import own_words, records
from nccl_doctor.explain.signatures import Signature, all_signatures
from nccl_doctor.explain.template import Template

GENERIC = (records.MARK.encode(), b"Error: ", b"Exception: ")  # of any program's exceptions


class Wakes:
    """Which signatures, and which of their wordings, an anchor in a line wakes up."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self._by_anchor: dict[bytes, list[tuple[Signature, int]]] = {}
        for signature in signatures:
            for index, template in enumerate(signature.templates):
                for anchor in signature.wake or (template.anchor,):
                    for spelled in {anchor, json.dumps(anchor)[1:-1]}:  # a record of JSON escapes quotes and tabs
                        self._by_anchor.setdefault(spelled.encode(), []).append((signature, index))
        self.anchors = tuple(sorted(self._by_anchor))

    def matches(self, held: Iterable[bytes], text: str) -> list[tuple[Signature, dict[str, str]]]:
        """The signatures that recognise a line holding these anchors, each once, by name."""
        found = []
        for signature, templates in self._awake(frozenset(held)):
            groups = signature.match(text, templates)
            if groups is not None:
                found.append((signature, groups))
        return found

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - there are two of these in a process, for its life
    def _awake(self, held: frozenset[bytes]) -> list[tuple[Signature, list[Template]]]:
        """What these anchors wake up, by name; few combinations of them make up most of a log."""
        awake: dict[str, tuple[Signature, set[int]]] = {}
        for anchor in held:
            for signature, index in self._by_anchor.get(anchor, ()):
                awake.setdefault(signature.name, (signature, set()))[1].add(index)
        return [
            (signature, [signature.templates[index] for index in sorted(indices)])
            for _, (signature, indices) in sorted(awake.items())
        ]


class Plan:
    """The anchors that are looked for in every line, in one order, and what each wakes up; sampled signatures apart. An engine
    for either."""

    def __init__(self, signatures: dict[str, Signature]) -> None:
        self.searched = Wakes(item for item in signatures.values() if not item.sampled)
        self.sampled = Wakes(item for item in signatures.values() if item.sampled)
        self.anchors = tuple(sorted({*self.searched.anchors, *GENERIC, *own_words.ANCHORS}))
        self.engine = matcher.engine(self.anchors)
        self.sampling = matcher.engine(self.sampled.anchors)
        self.progress = signatures["progress"]
        self.error_line = signatures["error-line"]


@functools.cache
def plan() -> Plan:
    """The plan for all signatures, built once per process."""
    return Plan(all_signatures())
