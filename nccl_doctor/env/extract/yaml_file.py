"""YAML (and JSON): Kubernetes env lists, ConfigMaps, compose files, Hydra and Ray configurations, scripts inside them.

Works on the node graph, never on constructed objects: aliases are followed once, so a "billion laughs" file costs no
more than its own size, and every value keeps its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from nccl_doctor.env.assignments import INTEREST, Assignment, How, is_ours
from nccl_doctor.env.extract import conf, env_file, shell

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
_TEMPLATE = re.compile(r"\{\{|\{%")
# Helm and Jinja templates are not YAML before they are rendered: these lines can be read all the same.
_NAME_LINE = re.compile(r"\s*-?\s*name:\s*[\"']?([A-Z][A-Z0-9_]*)[\"']?\s*\Z")
_VALUE_LINE = re.compile(r"\s*value:(.*)\Z")
_MAP_LINE = re.compile(r"\s*-?\s*[\"']?([A-Z][A-Z0-9_]*)[\"']?\s*[:=](.*)\Z")
_MAX_DEPTH = 200


class BadYaml(ValueError):
    """The text is no YAML; the message says where."""


def read(text: str, file: str = "") -> list[Assignment]:
    """What the file sets; ``BadYaml`` if it cannot be parsed (a template is read line by line instead)."""
    if not INTEREST.search(text):
        return []
    if _deep(text):
        raise BadYaml(f"nested deeper than {_MAX_DEPTH} levels")
    found: list[Assignment] = []
    lines = text.split("\n")
    seen: set[int] = set()
    try:
        for document in yaml.compose_all(text, Loader=_LOADER):
            if document is not None:
                _walk(document, file, lines, seen, found, 0)
    except yaml.YAMLError as error:
        if _TEMPLATE.search(text):
            return list(_line_by_line(lines, file))
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadYaml(f"{where}{getattr(error, 'problem', None) or 'not YAML'}") from None
    return sorted(found, key=lambda item: item.line or 0)


def _deep(text: str) -> bool:
    """Whether brackets nest absurdly deep: libyaml's parser recurses, and this is cheaper than finding out."""
    depth = 0
    for match in re.finditer(r"[\[\]{}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > _MAX_DEPTH:
            return True
    return False


def _walk(node: Any, file: str, lines: list[str], seen: set[int], found: list[Assignment], depth: int) -> None:
    if id(node) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _mapping(node, file, lines, found)
        for key, value in node.value:
            if isinstance(value, yaml.ScalarNode):
                _scalar(value, file, lines, found, key.value if isinstance(key, yaml.ScalarNode) else "")
            else:
                _walk(value, file, lines, seen, found, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        _sequence(node, file, lines, found)
        for item in node.value:
            _walk(item, file, lines, seen, found, depth + 1)


def _add(name: str, value: Any, file: str, lines: list[str], scope: int, kubernetes: bool) -> Iterator[Assignment]:
    if not is_ours(name):
        return
    line = value.start_mark.line + 1
    text = value.value if isinstance(value, yaml.ScalarNode) else None
    not_text = _type(value) if isinstance(value, yaml.ScalarNode) else ""
    if not kubernetes and not_text in ("integer", "float", "null"):
        not_text = ""  # compose and Hydra turn numbers into text; a boolean would arrive as "True"
    if text is not None and ("${" in text or "{{" in text or "$(" in text or text.startswith("$")):
        text = shell.value_of(text) if text.startswith("${") else None
    yield Assignment(name, text, file, line, How.YAML, lines[line - 1].strip(), f"{file}#{scope}", not_text=not_text)


def _type(node: Any) -> str:
    tag = node.tag.rsplit(":", 1)[-1]
    return {"int": "integer", "bool": "boolean", "float": "float", "null": "null"}.get(tag, "")


def _mapping(node: Any, file: str, lines: list[str], found: list[Assignment]) -> None:
    scope = node.start_mark.line + 1
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and key.value.isidentifier():
            found += _add(key.value, value, file, lines, scope, kubernetes=False)


def _sequence(node: Any, file: str, lines: list[str], found: list[Assignment]) -> None:
    """``- name: X`` / ``value: y`` pairs, ``- X=y`` strings, and command lines given as lists."""
    scope = node.start_mark.line + 1
    for item in node.value:
        if isinstance(item, yaml.MappingNode):
            fields = {key.value: value for key, value in item.value if isinstance(key, yaml.ScalarNode)}
            name = fields.get("name")
            if "value" in fields and isinstance(name, yaml.ScalarNode):
                found += _add(name.value, fields["value"], file, lines, scope, kubernetes=True)
        elif isinstance(item, yaml.ScalarNode) and INTEREST.search(item.value):
            pair = _PAIR.match(item.value)
            line = item.start_mark.line + 1
            if pair and is_ours(pair[1]) and not re.search(r"[\s;]", item.value.split("=", 1)[0]):
                value = shell.value_of(pair[2]) if "$" in pair[2] else pair[2]
                if " " not in pair[2]:
                    text = lines[line - 1].strip()
                    found.append(Assignment(pair[1], value, file, line, How.YAML, text, f"{file}#{scope}"))
                    continue
            _script(item, file, lines, found, f"{file}#{scope}")


def _scalar(node: Any, file: str, lines: list[str], found: list[Assignment], key: str) -> None:
    """A text that is itself a script or a configuration file (a ConfigMap's nccl.conf, a command block)."""
    if not INTEREST.search(node.value) or not re.search(r"[\s;=]", node.value):
        return
    first = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
    if key.endswith("nccl.conf"):
        found += conf.read(node.value, f"{file}#{key}", "", file, first)
    elif key.endswith(".env"):
        found += env_file.read(node.value, file)
    elif not re.match(r"[A-Za-z][A-Za-z0-9 ,]*\Z", node.value.replace("_", "")):
        _script(node, file, lines, found, f"{file}#{first}")


def _script(node: Any, file: str, lines: list[str], found: list[Assignment], scope: str) -> None:
    if re.search(r"(?m)(?:^|[\s;&|])[A-Z0-9_]+=", node.value) or "-x" in node.value or "export" in node.value:
        first = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        found += shell.read(node.value, file, first, scope)


def _line_by_line(lines: list[str], file: str) -> Iterator[Assignment]:
    name, at = "", 0
    for number, line in enumerate(lines, start=1):
        if match := _NAME_LINE.match(line):
            name, at = match[1], number
        elif name and number <= at + 2 and (match := _VALUE_LINE.match(line)):
            yield from _plain(name, match[1], file, number, line)
            name = ""
        elif (match := _MAP_LINE.match(line)) and is_ours(match[1]):
            yield from _plain(match[1], match[2], file, number, line)


def _plain(name: str, value: str, file: str, number: int, line: str) -> Iterator[Assignment]:
    if is_ours(name):
        value = value.strip()
        dynamic = "{{" in value or "$" in value
        yield Assignment(
            name, None if dynamic else value.strip("\"'"), file, number, How.YAML, line.strip(), f"{file}#template"
        )
