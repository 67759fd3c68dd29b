"""Tests on a machine with an NVIDIA GPU (`make test-gpu`); each skips with the reason where there is none."""

from __future__ import annotations

import ctypes
import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here (its modules bear the marker ``gpu``) skips where no driver answers."""
    reason = "" if os.environ.get("NCCL_DOCTOR_REHEARSAL") else _missing()
    for item in items:
        if "/tests/gpu/" not in str(item.path):
            continue
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "no NVIDIA driver on this machine (libnvidia-ml.so.1 is not found)"
    code = library.nvmlInit_v2()
    return f"NVML does not start here (error {code})" if code else ""
