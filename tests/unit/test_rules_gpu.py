"""Rules about single GPUs: what the driver did not tell has not passed."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import run

from nccl_doctor.facts.gpu import GpuDevice, GpuFact, System, Witness


def one(field: str, **refused: Any) -> dict[str, dict[str, Any]]:
    """A host with one GPU, whose driver supports nothing but this field."""
    others = tuple(name for name in GpuDevice.__struct_fields__ if name != field)
    answers = {"bus_id": "0000:01:00.0", "name": "NVIDIA T4", "memory_total_bytes": 1 << 34, **refused}
    gpu = GpuDevice(0, **{"not_supported": others, **answers})
    return {"a": {"gpu": GpuFact(Witness("ok"), Witness("ok"), System(count=1), (gpu,))}}


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("gpu_health.memory_errors", "ecc_uncorrected_volatile"),
        ("gpu_health.memory_errors", "remap_pending"),
        ("gpu_health.recovery_action", "recovery_action"),
        ("gpu_health.throttling", "throttle_reasons"),
        ("gpu_health.throttling", "temperature_c"),
        ("gpu_health.throttling", "power_limit_w"),
        ("gpu_nvlink.nvlinks", "nvlinks"),
        ("gpu_fabric.fabric", "fabric"),
        ("gpu_pcie.pcie", "pcie_width"),
    ],
)
def test_a_question_that_failed_or_was_refused_is_unknown(rule: str, field: str) -> None:
    assert run(rule, one("")).passed == ("a",)
    for refused in ({"errors": {field: "nvmlCall: Unknown Error"}}, {"not_permitted": (field,)}, {}):
        result = run(rule, one(field, **refused))
        assert not result.passed and len(result.unknown) == 1
