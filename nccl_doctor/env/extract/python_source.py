"""Python sources: os.environ["X"] = ..., setdefault, update, putenv, and dictionaries meant for an environment."""

from __future__ import annotations

import ast
import textwrap
import warnings

import msgspec

from nccl_doctor.env.assignments import INTEREST, Assignment, How, is_ours
from nccl_doctor.env.extract import shell

# What hands its first argument to a shell.
_SHELLS = frozenset({"system", "popen", "run", "Popen", "call", "check_call", "check_output", "getoutput", "local"})
_SETTERS = frozenset({"setdefault", "putenv", "setenv", "set_env", "set_environment_variable"})


class Visitor(ast.NodeVisitor):
    """Collects assignments; remembers the arms of if and match."""

    def __init__(self, file: str, first_line: int, scope: str, lines: list[str]) -> None:
        self.file, self.first_line, self.scope, self.lines = file, first_line, scope, lines
        self.found: list[Assignment] = []
        self.arms: list[tuple[int, int]] = []

    def _add(self, key: ast.expr | None, value: ast.expr, mapping: bool = False) -> None:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and is_ours(key.value)):
            return
        self._add_name(key.value, value, key.lineno, mapping)

    def _add_name(self, name: str, value: ast.expr, line: int, mapping: bool = False) -> None:
        text, not_text = _constant(value)
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
                not_text="" if mapping else not_text,
            )
        )

    def _command(self, node: ast.expr, options: bool = False) -> None:
        """A text that a shell will run or, with ``options``, the options of mpirun: ``-x NCCL_DEBUG=INFO``."""
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and INTEREST.search(node.value)):
            return
        if options and not node.value.lstrip().startswith("-"):
            return
        text = f"mpirun {node.value}" if options else node.value
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
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._add(key, value, mapping=True)
            self._command(value, options=True)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _SETTERS and len(node.args) >= 2:
            self._add(node.args[0], node.args[1])
        if called in _SHELLS and node.args:
            self._command(node.args[0])
        self.generic_visit(node)
        for keyword in node.keywords:  # os.environ.update(NCCL_DEBUG="INFO"), dict(os.environ, NCCL_DEBUG="INFO")
            if keyword.arg and is_ours(keyword.arg) and called in ("update", "dict", "run", "remote", "options"):
                self._add_name(keyword.arg, keyword.value, keyword.value.lineno)


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
