"""What sounds like trouble and is none: settings, commands, and failures that somebody handled."""

from __future__ import annotations

import pytest

from nccl_doctor.explain import trouble
from tests.unit.explained import explain_text


@pytest.mark.parametrize(
    "line",
    [
        "nv-fabricmanager[2874]: Option when facing NVSwitch failure = 0",
        "nv-fabricmanager[2874]: Continue to run when facing failures = 0",
        "2025-02-26T11:04:42Z   TORCH_NCCL_ASYNC_ERROR_HANDLING: 1",
        "[dry-run] srun torchrun --nnodes 4 --rdzv-conf timeout=900 pretrain.py --on-error abort --fail-fast",
        "##[group]Run torchrun --nproc-per-node 2 -m pytest tests/distributed -k 'error or retry or abort' -q",
    ],
)
def test_a_setting_or_a_command_is_no_trouble(line: str) -> None:
    assert not trouble.sounds_bad(line)


@pytest.mark.parametrize(
    "line",
    [
        "torchrun: error: the following arguments are required: training_script",
        "srun: error: Unable to create step for job 12: timeout",
        "the fabric manager reports failures = 3 and stops",
        "ERROR_CODE: 5 while the adapter was set up",
    ],
)
def test_what_a_command_or_a_setting_led_to_is(line: str) -> None:
    assert trouble.sounds_bad(line)


def _actor(pid: int, text: str) -> str:
    return f"(Rollout pid={pid}) {text}\n"


def test_what_an_actor_raised_and_its_like_outlived_is_no_cause() -> None:
    raised = "".join(
        _actor(7, line)
        for line in (
            "Traceback (most recent call last):",
            '  File "/app/env.py", line 3, in step',
            "ValueError: no answer tag",
        )
    )
    works = "".join(_actor(8, f"rollout {nth} of 400 scored") for nth in range(150))
    assert "app.rank-exception" in {cause.id for cause in explain_text(raised + _actor(8, "rollout 1 scored")).causes}
    assert not any(cause.confidence > 0.5 for cause in explain_text(raised + works + raised).causes)
    failed = (
        raised
        + works
        + 'Traceback (most recent call last):\n  File "/app/m.py", line 3, in f\nray.exceptions.RayTaskError(ValueError): ray::step()\n'
    )
    assert any(cause.confidence > 0.5 for cause in explain_text(failed).causes)


def test_an_adapters_refusal_before_a_tests_rows_is_no_cause() -> None:
    refused = "gx1.org:rank0.sendrecv_perf: Failed to modify UD QP to INIT on mlx5_0: Operation not permitted\n"
    rows = "".join(
        f"   {1 << nth}     {1 << nth}     float     sum      -1   14.1    0.37    0.37      0   14.2    0.37    0.37    N/A\n"
        for nth in range(10, 24)
    )
    assert explain_text(refused).causes[0].confidence > 0.8
    assert explain_text(refused + rows).causes[0].confidence < 0.5
