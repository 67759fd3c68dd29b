"""Benchmarks are run by hand, now and then: what they import, at the top or in a function, must still be there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
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


@pytest.mark.parametrize(
    ("wanted", "got", "how"),
    [
        ([], (), "exact"),
        ([3], (3,), "exact"),
        (["gpu01.cluster.lan"], ("GPU01",), "exact"),
        (["10.0.0.3"], ("10.0.0.4",), "others"),
        ([3], (), "nobody"),
        ([3], (4, 5), "others"),
        ([3], (3, 4), "more or fewer"),
        ([], (3,), "more or fewer"),
    ],
)
def test_who_is_to_blame_is_compared(wanted: list[object], got: tuple[object, ...], how: str) -> None:
    spec = importlib.util.spec_from_file_location("explain_accuracy", BENCHMARKS[0].with_name("explain_accuracy.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert module.blame(wanted, got) == how
