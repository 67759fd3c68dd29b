"""A pickle decoder that can build nothing but plain data, for files that come from somebody else's cluster.

``pickle.loads`` runs code that the file chooses. Flight-recorder dumps of every torch release need none of that: they
hold dicts, lists, tuples, strings, numbers, booleans and None (checked on torch 2.4 to 2.13: no GLOBAL and no REDUCE
in any of them). So this module interprets exactly the opcodes that build such data, and refuses the first other one.

What it guards against, beside code:

* claimed sizes: no buffer is ever allocated from a length field, a length beyond the file's end is refused;
* one-byte opcodes that each build an object of 60 bytes: the number of opcodes is limited;
* sharing: twenty lines of memo lookups can describe a list with a billion leaves. The decoded objects are only
  handed out after their expanded size (every shared object counted each time it appears) was found to be bounded;
* cycles and deep nesting, which would hang or crash whoever walks the result;
* integers of more than 64 bits and dict keys other than str and int, which can be made to collide.

Time and memory are linear in the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

PlainData = None | bool | int | float | str | list["PlainData"] | tuple["PlainData", ...] | dict[str | int, "PlainData"]

MAX_BYTES = 32 << 20
MAX_OPCODES = (
    4_000_000  # a dump of 20,000 entries with 60 stack frames each has about 3 million; torch's default is 2,000
)
MAX_NODES = 8_000_000  # the same dump with every shared stack frame counted each time has about 6 million
MAX_DEPTH = 64

_Container = list[PlainData] | tuple[PlainData, ...] | dict[str | int, PlainData]


class PlainPickleRefused(ValueError):
    """The bytes are not a pickle of plain data; says why, and at which byte where that is known."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"{reason} (at byte {offset})")


def loads(data: bytes) -> PlainData:
    """Decode one pickle of plain data (protocol 2 to 5); :class:`PlainPickleRefused` for everything else.

    Containers that the pickle shares are shared in the result too; its expanded size is at most :data:`MAX_NODES`.
    """
    if len(data) > MAX_BYTES:
        raise PlainPickleRefused(f"{len(data)} bytes are more than the {MAX_BYTES} that are read")
    result = _Machine(data).run()
    _check_expanded_size(result)
    return result


_FOUR_BYTES = struct.Struct("<I")


class _Machine:
    """The pickle stack machine, reduced to the opcodes of plain data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[PlainData] = []
        self.marks: list[int] = []
        self.memo: dict[int, PlainData] = {}

    def run(self) -> PlainData:
        """Interpret until STOP. Memo lookups, two thirds of a dump's opcodes, are done here and not in a call."""
        data, handlers, size = self.data, _HANDLERS, len(self.data)
        stack, memo = self.stack, self.memo
        if size < 2 or data[0] != 0x80:
            raise PlainPickleRefused("not a pickle of protocol 2 or newer", 0)
        for _ in range(MAX_OPCODES):
            position = self.position
            if position >= size:
                raise self.refused("truncated: no STOP opcode")
            opcode = data[position]
            if opcode == 0x6A and position + 5 <= size:  # LONG_BINGET
                index = _FOUR_BYTES.unpack_from(data, position + 1)[0]
                if index in memo:
                    stack.append(memo[index])
                    self.position = position + 5
                    continue
            elif opcode == 0x68 and position + 2 <= size and data[position + 1] in memo:  # BINGET
                stack.append(memo[data[position + 1]])
                self.position = position + 2
                continue
            elif opcode == 0x2E:  # STOP
                return self._result()
            handler = handlers.get(opcode)
            if handler is None:
                raise PlainPickleRefused(f"opcode {_name(opcode)} is not allowed in plain data", position)
            self.position = position + 1
            handler(self)
        raise self.refused(f"more than {MAX_OPCODES} opcodes")

    def _result(self) -> PlainData:
        if len(self.stack) != 1 or self.marks:
            raise self.refused("STOP with an unfinished stack")
        return self.stack[0]

    def refused(self, reason: str) -> PlainPickleRefused:
        return PlainPickleRefused(reason, self.position)

    # Arguments. Every read checks the end of the data before it touches it.

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise self.refused(f"truncated: {count} bytes claimed, {len(self.data) - self.position} left")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    # The stack.

    def pop(self, count: int) -> list[PlainData]:
        """The last values, in the order in which they were pushed."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise self.refused("stack underflow")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_to_mark(self) -> list[PlainData]:
        if not self.marks:
            raise self.refused("no MARK on the stack")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self) -> PlainData:
        if not self.stack:
            raise self.refused("stack underflow")
        return self.stack[-1]

    # Opcodes.

    def proto(self) -> None:
        version = self.unsigned(1)
        if not 2 <= version <= 5:
            raise self.refused(f"protocol {version} is not read")

    def frame(self) -> None:
        size = self.unsigned(8)
        if self.position + size > len(self.data):
            raise self.refused(f"truncated: a frame of {size} bytes, {len(self.data) - self.position} left")

    def push(self, value: PlainData) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def text(self, width: int) -> None:
        raw = self.take(self.unsigned(width))
        self.stack.append(raw.decode("utf-8", "backslashreplace"))

    def long1(self) -> None:
        count = self.unsigned(1)
        if count > 9:  # 64 bits unsigned need nine bytes in two's complement
            raise self.refused(f"an integer of {count} bytes")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def binint(self) -> None:
        self.stack.append(int.from_bytes(self.take(4), "little", signed=True))

    def binfloat(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def append(self, items: list[PlainData]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise self.refused("items for something that is not a list")
        target.extend(items)

    def set_items(self, items: list[PlainData]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise self.refused("items for something that is not a dict")
        if len(items) % 2:
            raise self.refused("a dict with a key but no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise self.refused(f"a dict key of type {type(key).__name__}")
            target[key] = value

    def get(self, width: int) -> None:
        index = self.unsigned(width)
        if index not in self.memo:
            raise self.refused(f"memo entry {index} was never stored")
        self.stack.append(self.memo[index])

    def put(self, width: int) -> None:
        self.memo[self.unsigned(width)] = self.top()

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.top()


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    0x28: _Machine.mark,
    0x4E: lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    0x4A: _Machine.binint,
    0x4B: lambda m: m.push(m.unsigned(1)),
    0x4D: lambda m: m.push(m.unsigned(2)),
    0x8A: _Machine.long1,
    0x47: _Machine.binfloat,
    0x8C: lambda m: m.text(1),
    0x58: lambda m: m.text(4),
    0x8D: lambda m: m.text(8),
    0x5D: lambda m: m.push([]),
    0x61: lambda m: m.append(m.pop(1)),
    0x65: lambda m: m.append(m.pop_to_mark()),
    0x7D: lambda m: m.push({}),
    0x73: lambda m: m.set_items(m.pop(2)),
    0x75: lambda m: m.set_items(m.pop_to_mark()),
    0x29: lambda m: m.push(()),
    0x85: lambda m: m.push(tuple(m.pop(1))),
    0x86: lambda m: m.push(tuple(m.pop(2))),
    0x87: lambda m: m.push(tuple(m.pop(3))),
    0x74: lambda m: m.push(tuple(m.pop_to_mark())),
    0x68: lambda m: m.get(1),
    0x6A: lambda m: m.get(4),
    0x71: lambda m: m.put(1),
    0x72: lambda m: m.put(4),
    0x94: _Machine.memoize,
}


def _name(opcode: int) -> str:
    """The opcode's published name, for the message of a refusal."""
    import pickletools

    names = {item.code: item.name for item in pickletools.opcodes}
    return names.get(chr(opcode), f"0x{opcode:02x}")


_CONTAINERS = frozenset((list, tuple, dict))


def _check_expanded_size(root: PlainData) -> None:
    """Refuse a result that has cycles, is nested too deep, or grows beyond :data:`MAX_NODES` when sharing is undone.

    Each distinct container is visited once, its children before it; its expanded size and depth are the sum and the
    maximum over them.
    """
    done: dict[int, tuple[int, int]] = {}  # id -> (expanded nodes, depth)
    begun: dict[int, list[_Container]] = {}  # id -> the containers in it; begun and not done: an ancestor
    work = _inner([root])
    while work:
        item = work[-1]
        key = id(item)
        if key in done:
            work.pop()
            continue
        if key not in begun:
            begun[key] = _inner(item.values() if type(item) is dict else item)
            ahead = [child for child in begun[key] if id(child) not in done]
            if any(id(child) in begun for child in ahead):
                raise PlainPickleRefused("a container that contains itself")
            if ahead:
                work.extend(ahead)
                continue
        nodes, depth = 1 + len(item), 0
        for child in begun[key]:
            child_nodes, child_depth = done[id(child)]
            nodes += child_nodes
            depth = max(depth, child_depth)
        if nodes > MAX_NODES:
            raise PlainPickleRefused(f"shared objects expand to more than {MAX_NODES} nodes")
        if depth >= MAX_DEPTH:
            raise PlainPickleRefused(f"nested deeper than {MAX_DEPTH} levels")
        done[key] = (nodes, depth + 1)
        work.pop()


def _inner(items: Iterable[Any]) -> list[_Container]:
    return [item for item in items if type(item) in _CONTAINERS]
