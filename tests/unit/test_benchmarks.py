"""Benchmarks are run by hand, now and then: what they import, at the top or in a function, must still be there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_ours_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("nccl_doctor", "tests")):
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name}")
                assert hasattr(module, name) or is_module, f"{path.name}:{node.lineno}: no {name} in {node.module}"
