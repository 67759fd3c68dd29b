"""YAML (and JSON): Kubernetes env lists, ConfigMaps, compose files, Hydra and Ray configurations, scripts inside them.

Works on the node graph, never on constructed objects: aliases are followed once, so a "billion laughs" file costs no
more than its own size, and every value keeps its line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from nccl_doctor.env.assignments import INTEREST, MAX_ARMS, Assignment, How, is_ours
from nccl_doctor.env.extract import conf, env_file, shell

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
_LINES = re.compile(r"(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*=")
# Templates (Helm, Jinja, envsubst) are not YAML before they are rendered. No expression reaches beyond where the next one begins,
# so that one that is never closed costs one pass.
_TEMPLATE = re.compile(r"\{\{(?:[^{}]|\{(?!\{)|\}(?!\}))*\}\}|\{%(?:[^%{]|%(?!\})|\{(?!%))*%\}|\$\{[^{}\n]*\}")
_DIRECTIVE = re.compile(r"\{[{%]-?\s*([a-z]+)")
_COMPUTED = "$TEMPLATE"  # stands where a template would fill something in
_MAX_DEPTH = 200


class BadYaml(ValueError):
    """The text is no YAML; the message says where."""


def read(text: str, file: str = "") -> list[Assignment]:
    """What the file sets; ``BadYaml`` if it cannot be parsed, and not either with its template expressions replaced."""
    if not INTEREST.search(text):
        return []
    if _deep(text):
        raise BadYaml(f"nested deeper than {_MAX_DEPTH} levels")
    try:
        return _parsed(text, text.split("\n"), file)
    except yaml.YAMLError as error:
        if _TEMPLATE.search(text):
            with contextlib.suppress(yaml.YAMLError):
                arms = _arms(text)
                return [
                    msgspec.structs.replace(item, branch=(*arms[(item.line or 1) - 1], *item.branch))
                    for item in _parsed(_filled_in(text), text.split("\n"), file)
                ]
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadYaml(f"{where}{getattr(error, 'problem', None) or 'not YAML'}") from None


def _parsed(text: str, lines: list[str], file: str) -> list[Assignment]:
    """What a YAML text sets, in line order. ``lines`` are quoted: those of the file as it stands."""
    found: list[Assignment] = []
    for document in yaml.compose_all(text, Loader=_LOADER):
        if isinstance(document, yaml.ScalarNode) and _LINES.match(document.value):
            # To YAML this is one text, which sets nothing: passed over, each of its lines would have been called good.
            raise BadYaml("lines of NAME=value and no mapping; name it .env, or .sh, if it is one")
        if document is not None:  # a reader for each: the nodes of the document before are gone, their ids used again
            reader = _Reader(file, lines)
            reader.walk(document)
            found += reader.found
    return sorted(found, key=lambda item: item.line or 0)


def _filled_in(text: str) -> str:
    """The template with a placeholder for each expression, and without the lines that hold nothing else."""
    plain = _TEMPLATE.sub(lambda match: _COMPUTED + "\n" * match[0].count("\n"), text)
    return re.sub(rf"(?m)^[ \t]*(?:{re.escape(_COMPUTED)}[ \t]*)+$", "", plain)


def _arms(text: str) -> list[tuple[tuple[int, int], ...]]:
    """For each line the arms of the template's conditions around it."""
    arms: list[tuple[tuple[int, int], ...]] = []
    open_: list[tuple[int, int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        for match in _DIRECTIVE.finditer(line):
            if match[1] in ("if", "with", "range", "for"):
                open_.append((-number, 0))
            elif match[1] in ("else", "elif") and open_:
                open_[-1] = (open_[-1][0], open_[-1][1] + 1)
            elif match[1] in ("end", "endif", "endfor", "endwith") and open_:
                open_.pop()
        arms.append(tuple(open_[:MAX_ARMS]))
    return arms


def _deep(text: str) -> bool:
    """Whether brackets nest absurdly deep: libyaml's parser recurses, and this is cheaper than finding out."""
    depth = 0
    for match in re.finditer(r"[\[\]{}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > _MAX_DEPTH:
            return True
    return False


class _Reader:
    """Reads one document: collects what it sets, and follows each node once."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file, self.lines = file, lines
        self.found: list[Assignment] = []
        self._seen: set[int] = set()

    def walk(self, node: Any, depth: int = 0) -> None:
        """This node and all below it."""
        if id(node) in self._seen or depth > _MAX_DEPTH:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._mapping(node)
            for key, value in node.value:
                if isinstance(value, yaml.ScalarNode):
                    self._scalar(value, key.value if isinstance(key, yaml.ScalarNode) else "")
                else:
                    self.walk(value, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            self._sequence(node)
            for item in node.value:
                self.walk(item, depth + 1)

    def _add(self, name: str, value: Any, scope: int, kubernetes: bool) -> None:
        if not is_ours(name):
            return
        line = value.start_mark.line + 1
        text = value.value if isinstance(value, yaml.ScalarNode) else None
        not_text = _type(value) if isinstance(value, yaml.ScalarNode) else ""
        if not_text == "null":
            if not kubernetes:
                return  # not set here: compose passes on what the shell has, Hydra and NeMo set nothing
            text, not_text = "", ""
        if not kubernetes and not_text in ("integer", "float"):
            not_text = ""  # compose and Hydra turn numbers into text; a boolean would arrive as "True"
        if text is not None and ("$" in text or "{{" in text):
            text = shell.value_of(text) if text.startswith("${") else None
        self._set(name, text, line, scope, not_text)

    def _set(self, name: str, text: str | None, line: int, scope: int, not_text: str = "") -> None:
        quoted = self.lines[line - 1].strip()
        place = f"{self.file}#{scope}"
        self.found.append(Assignment(name, text, self.file, line, How.YAML, quoted, place, not_text=not_text))

    def _mapping(self, node: Any) -> None:
        scope = node.start_mark.line + 1
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and key.value.isidentifier():
                self._add(key.value, value, scope, kubernetes=False)

    def _sequence(self, node: Any) -> None:
        """``- name: X`` / ``value: y`` pairs, ``- X=y`` strings, and command lines given as lists."""
        scope = node.start_mark.line + 1
        for item in node.value:
            if isinstance(item, yaml.MappingNode):
                fields = {key.value: value for key, value in item.value if isinstance(key, yaml.ScalarNode)}
                name = fields.get("name")
                if "value" in fields and isinstance(name, yaml.ScalarNode):
                    self._add(name.value, fields["value"], scope, kubernetes=True)
            elif isinstance(item, yaml.ScalarNode) and INTEREST.search(item.value):
                pair = _PAIR.match(item.value)
                if pair and is_ours(pair[1]) and " " not in pair[2]:
                    value = shell.value_of(pair[2]) if "$" in pair[2] else pair[2]
                    self._set(pair[1], value, item.start_mark.line + 1, scope)
                else:
                    self._script(item, f"{self.file}#{scope}")

    def _scalar(self, node: Any, key: str) -> None:
        """A text that is itself a script or a configuration file (a ConfigMap's nccl.conf, a command block)."""
        if not INTEREST.search(node.value) or not re.search(r"[\s;=]", node.value):
            return
        first = _first_line(node)
        if key.endswith("nccl.conf"):
            self.found += conf.read(node.value, f"{self.file}#{key}", "", self.file, first)
        elif key.endswith((".env", ".yaml", ".yml")):
            inside = env_file.read if key.endswith(".env") else read
            with contextlib.suppress(BadYaml):
                for item in inside(node.value, self.file):
                    line = first + (item.line or 1) - 1
                    self.found.append(msgspec.structs.replace(item, line=line, scope=f"{item.scope}#{first}"))
        elif not re.match(r"[A-Za-z][A-Za-z0-9 ,]*\Z", node.value.replace("_", "")):
            self._script(node, f"{self.file}#{first}")

    def _script(self, node: Any, scope: str) -> None:
        if re.search(r"(?m)(?:^|[\s;&|])[A-Z0-9_]+=", node.value) or "-x" in node.value or "export" in node.value:
            first = _first_line(node)
            items = shell.read(node.value, self.file, first, scope)
            # Only a literal block keeps its lines; any other text of several lines has become one.
            literal = node.style == "|"
            self.found += items if literal else _at_their_lines(items, self.lines, first, node.end_mark.line + 1)


def _first_line(node: Any) -> int:
    """The line of the file on which a text begins: a block's begins below its mark."""
    return int(node.start_mark.line) + (2 if node.style in ("|", ">") else 1)


def _type(node: Any) -> str:
    tag = node.tag.rsplit(":", 1)[-1]
    return {"int": "integer", "bool": "boolean", "float": "float", "null": "null"}.get(tag, "")


def _at_their_lines(items: list[Assignment], lines: list[str], first: int, last: int) -> Iterator[Assignment]:
    """The assignments with the lines of the file they stand on, which are between two."""
    places: dict[str, list[int]] = {}
    for number in range(min(last, len(lines)), first - 1, -1):
        for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", lines[number - 1]):
            places.setdefault(name, []).append(number)
    for item in items:
        numbers = places.get(item.written or item.name, [item.line or first])
        number = numbers.pop() if len(numbers) > 1 else numbers[0]
        yield msgspec.structs.replace(item, line=number, text=lines[number - 1].strip())
