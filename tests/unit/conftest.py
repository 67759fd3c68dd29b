"""Helpers beside the tests can be imported; sound machines are read once for all tests, and no test changes them."""

import sys
from pathlib import Path

import pytest

from tests.hardware_kit.fleet import Facts
from tests.hardware_kit.machines import Machine

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The facts of a sound board of eight GPUs and eight InfiniBand adapters."""
    return Machine(tmp_path_factory.mktemp("healthy")).facts()


@pytest.fixture(scope="session")
def healthy_roce(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The same with RoCE."""
    return Machine(tmp_path_factory.mktemp("roce")).roce().facts()
