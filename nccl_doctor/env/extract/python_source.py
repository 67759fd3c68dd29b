"""Python sources: os.environ["X"] = ..., setdefault, update, putenv, and dictionaries meant for an environment."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
import warnings

import msgspec

from nccl_doctor.env.assignments import INTEREST, Assignment, How, is_ours
from nccl_doctor.env.extract import shell

# What hands its first argument to a shell.
_SHELLS = frozenset({"system", "popen", "run", "Popen", "call", "check_call", "check_output", "getoutput", "local"})
_SETS = re.compile(r"setdefault|_?(?:set|put|add|export)_?env", re.IGNORECASE)
# What a text that is kept for later must name to count as a command.
_LAUNCHES = re.compile(r"\b(?:mpirun|mpiexec|srun|torchrun|deepspeed|docker run)\b")
_CARRIES = frozenset({"-x", "-e", "--env"})


class Visitor(ast.NodeVisitor):
    """Collects assignments; remembers the arms of if and match."""

    def __init__(self, file: str, first_line: int, scope: str, lines: list[str]) -> None:
        self.file, self.first_line, self.scope, self.lines = file, first_line, scope, lines
        self.found: list[Assignment] = []
        self.arms: list[tuple[int, int]] = []

    def _add(self, key: ast.expr | None, value: ast.expr, mapping: bool = False) -> None:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and is_ours(key.value)):
            return
        text, not_text = _constant(value)
        self._add_text(key.value, text, key.lineno, "" if mapping else not_text)

    def _add_text(self, name: str, text: str | None, line: int, not_text: str = "") -> None:
        self.found.append(
            Assignment(
                name,
                text,
                self.file,
                self.first_line + line - 1,
                How.PYTHON,
                self.lines[line - 1].strip() if line <= len(self.lines) else "",
                self.scope,
                tuple(self.arms),
                not_text=not_text,
            )
        )

    def _command(self, node: ast.expr, options: bool = False) -> None:
        """A text that a shell will run or, with ``options``, the options of mpirun: ``-x NCCL_DEBUG=INFO``."""
        text = _text(node)
        if not INTEREST.search(text) or (options and not text.lstrip().startswith("-")):
            return
        text = f"mpirun {text}" if options else text
        for item in shell.read(text, self.file, node.lineno, self.scope):
            if not item.lost and item.line:
                line = self.first_line + item.line - 1
                stands = self.lines[item.line - 1].strip() if item.line <= len(self.lines) else item.text
                arms = (*self.arms, *item.branch)
                self.found.append(msgspec.structs.replace(item, line=line, text=stands, branch=arms))

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        for arm, body in enumerate((node.body, node.orelse)):
            self.arms.append((node.lineno * 1000 + node.col_offset, arm))
            for child in body:
                self.visit(child)
            self.arms.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self._add(target.slice, node.value, mapping=not _is_environ(target.value))
        if _LAUNCHES.search(_text(node.value)):
            self._command(node.value)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        """A command line in pieces: ``["mpirun", "-x", "NCCL_DEBUG=INFO"]``."""
        for option, item in itertools.pairwise(node.elts):
            name, equals, value = _text(item).partition("=")
            if _text(option) in _CARRIES and equals and is_ours(name):
                self._add_text(name, shell.value_of(value), item.lineno)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        fields = {_text(key): value for key, value in zip(node.keys, node.values, strict=True) if key is not None}
        if "name" in fields and "value" in fields:
            self._add(fields["name"], fields["value"], mapping=True)
        for key, value in zip(node.keys, node.values, strict=True):
            self._add(key, value, mapping=True)
            self._command(value, options=True)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if _SETS.match(called) and len(node.args) >= 2:
            self._add(node.args[0], node.args[1])
        if "name" in given and "value" in given:  # V1EnvVar(name="NCCL_DEBUG", value="INFO") and its relatives
            self._add(given["name"], given["value"], mapping=True)
        if called in _SHELLS and node.args:
            self._command(node.args[0])
        self.generic_visit(node)
        for keyword in node.keywords:  # os.environ.update(NCCL_DEBUG="INFO"), dict(os.environ, NCCL_DEBUG="INFO")
            if keyword.arg and is_ours(keyword.arg) and called in ("update", "dict", "run", "remote", "options"):
                text, not_text = _constant(keyword.value)
                self._add_text(keyword.arg, text, keyword.value.lineno, not_text)


def _text(node: ast.expr) -> str:
    """A text as it stands, with ``$COMPUTED`` where an f-string fills something in; empty where it is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "$COMPUTED" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or getattr(node, "id", "") == "environ"


def _constant(node: ast.expr) -> tuple[str | None, str]:
    """(value, type where it is no string)."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return f"-{node.operand.value!r}", type(node.operand.value).__name__
    if isinstance(node, ast.Constant):
        return str(node.value), "" if isinstance(node.value, str) else type(node.value).__name__
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1:
        return _constant(node.args[0])[0], ""
    return None, ""


def read(text: str, file: str = "", first_line: int = 1, scope: str = "") -> list[Assignment]:
    """What the source sets. ``SyntaxError`` (also for null bytes and too deep nesting) says it cannot be read."""
    if not INTEREST.search(text):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's source are not our business
            tree = ast.parse(textwrap.dedent(text) if first_line > 1 else text)
        visitor = Visitor(file, first_line, scope or file, text.split("\n"))
        visitor.visit(tree)
    except (RecursionError, MemoryError, ValueError) as error:
        raise SyntaxError(f"cannot be parsed: {type(error).__name__}") from None
    order = sorted(range(len(visitor.found)), key=lambda place: (visitor.found[place].line or 0, place))
    return [visitor.found[place] for place in order]
