"""Ansible inventories in INI form: groups, children, variables, and ``node[01:16]`` ranges.

Only what says where a host is and who logs in is read: ansible_host, ansible_user, ansible_port and their old names.
"""

from __future__ import annotations

import graphlib
import re
import shlex

from nccl_doctor.inventory import names, nodesets
from nccl_doctor.inventory.lines import strip_comment
from nccl_doctor.inventory.model import HostEntry, InventoryError
from nccl_doctor.inventory.names import BadName

_HEADER = re.compile(r"\[([A-Za-z0-9_.-]+)(?::(vars|children|hosts))?\]\Z")
_RANGE = re.compile(r"\[([0-9]{1,9}|[A-Za-z]):([0-9]{1,9}|[A-Za-z])(?::([0-9]{1,6}))?\]", re.ASCII)
_MEANINGS = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
}


def looks_like(lines: list[str]) -> bool:
    """Whether a file is of this format: it has a ``[group]`` header (``[::1]`` is an address) or ansible variables."""
    for line in lines:
        text = strip_comment(line)
        header = _HEADER.match(text)
        if (header and not re.match(r"\[[0-9,-]+\]\Z", text)) or re.search(r"\sansible_\w+\s*=", text):
            return True
    return False


def refuse_yaml(lines: list[str], source: str) -> None:
    """Stop at an inventory in YAML or JSON: read as a hostfile, each of its lines would be wrong in its own way."""
    told = [(number, line) for number, line in enumerate(lines, 1) if strip_comment(line)][:2]
    if not told:
        return
    number, first = told[0][0], strip_comment(told[0][1])
    nested = first.endswith(":") and told[-1][1].startswith((" ", "\t"))
    if nested or first.startswith(("---", "{", "[{")):
        expected = (
            "YAML or JSON; of Ansible's inventories the INI form is read. The hosts of any: "
            "ansible all -i FILE --list-hosts | tail -n +2 | nccl-doctor check --hosts -"
        )
        raise InventoryError(source, number, first, expected)


def expand(pattern: str) -> list[str]:
    """The names of ``node[01:16]``, ``rack[a:d]-n[1:4]``; raises :class:`BadName`."""
    found = _RANGE.search(pattern)
    if not found:
        return [names.host(pattern)]
    low, high, step = found[1], found[2], int(found[3] or 1)
    if low.isdigit() != high.isdigit() or step < 1:
        raise BadName("expected a range such as [01:16] or [a:f]")
    numeric = low.isdigit()
    first, last = (int(low), int(high)) if numeric else (ord(low), ord(high))
    if last < first:
        raise BadName(f"the range {found[0]} runs backwards")
    width = len(low) if low.startswith("0") else 0
    result: list[str] = []
    for value in range(first, last + 1, step):
        piece = str(value).zfill(width) if numeric else chr(value)
        result += expand(pattern[: found.start()] + piece + pattern[found.end() :])
        if len(result) > nodesets.MOST:
            raise BadName(f"more than {nodesets.MOST} hosts")
    return result


class _Reader:
    """Collects the sections of one file, then gives each host the variables of its groups."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.hosts: dict[str, int] = {}  # name -> line, in order
        self.host_variables: dict[str, dict[str, str]] = {}
        self.group_variables: dict[str, dict[str, str]] = {}
        self.groups: dict[str, set[str]] = {}  # host -> the groups it is named in
        self.parents: dict[str, list[str]] = {}  # group -> those it is a child of
        self.section = ("ungrouped", "hosts")

    def line(self, number: int, text: str) -> None:
        """Take one line without its comment; raises :class:`BadName`."""
        header = _HEADER.match(text)
        if header:
            self.section = (header[1], header[2] or "hosts")
            return
        group, kind = self.section
        if kind == "vars":
            self.group_variables.setdefault(group, {}).update(self._assignments([text]))
        elif kind == "children":
            if not re.match(r"[A-Za-z0-9_.-]+\Z", text):
                raise BadName("expected the name of a group")
            self.parents.setdefault(text, []).append(group)
        else:
            self._host_line(group, number, text)

    def _host_line(self, group: str, number: int, text: str) -> None:
        try:
            first, *words = shlex.split(text)
        except ValueError as error:
            raise BadName(f"expected host key=value ...: {error}") from error
        variables = self._assignments(words)
        bracket = "" if names.is_ipv6(first) or "[" in first else first.partition(":")[2]
        if bracket:
            first = first.partition(":")[0]
            variables.setdefault("port", str(names.port(bracket)))
        for name in expand(first):
            self.hosts.setdefault(name, number)
            self.host_variables.setdefault(name, {}).update(variables)
            self.groups.setdefault(name, {"all"}).add(group)

    def _assignments(self, words: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise BadName("expected key=value")
            meaning = _MEANINGS.get(key.strip())
            if meaning:
                found[meaning] = self._checked(meaning, value.strip().strip("\"'"))
        return found

    def _checked(self, meaning: str, value: str) -> str:
        if "{{" in value:
            raise BadName("templates are not filled in here; write the value")
        if meaning == "port":
            names.port(value)
        elif meaning == "user":
            names.user(value)
        else:
            names.host(value)
        return value

    def _lineages(self) -> dict[str, dict[str, int]]:
        """group -> itself and all groups above it, with how far down the tree each is: deeper groups win."""
        found = {"all": {"all": 0}}
        try:
            order = [*graphlib.TopologicalSorter(self.parents).static_order()]  # parents first
        except graphlib.CycleError as error:
            group = error.args[1][0]
            raise InventoryError(self.source, None, f"[{group}:children]", "a group that contains itself") from None
        for group in dict.fromkeys([*order, *(one for groups in self.groups.values() for one in groups)]):
            above = {name: depth for parent in self.parents.get(group, ()) for name, depth in found[parent].items()}
            found.setdefault(group, {**above, group: 1 + max(above.values(), default=0)})
        return found

    def entries(self) -> list[HostEntry]:
        """The hosts, each with the nearest variables."""
        lineages = self._lineages()
        result = []
        for name in self.hosts:
            merged: dict[str, str] = {}
            depths = {group: depth for own in self.groups[name] for group, depth in lineages[own].items()}
            for group in sorted(depths, key=lambda group: (depths[group], group)):
                merged.update(self.group_variables.get(group, {}))
            merged.update(self.host_variables.get(name, {}))
            address = merged.get("address", "")
            port = int(merged["port"]) if "port" in merged else None
            user, line = merged.get("user", ""), self.hosts[name]
            result.append(HostEntry(name, user, port, None, line, address if address != name else ""))
        return result


def parse(lines: list[str], source: str) -> list[HostEntry]:
    """All hosts of the file; raises :class:`InventoryError`."""
    reader = _Reader(source)
    for number, line in enumerate(lines, 1):
        text = strip_comment(line)
        if not text or text.startswith(";"):
            continue
        try:
            reader.line(number, text)
            if len(reader.hosts) > nodesets.MOST:
                raise BadName(f"more than {nodesets.MOST} hosts")
        except BadName as error:
            raise InventoryError(source, number, line.strip(), str(error)) from error
    return reader.entries()
