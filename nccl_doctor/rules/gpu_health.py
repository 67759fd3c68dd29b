"""GPU health: memory errors, recovery, heat and power."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.gpu import GpuDevice
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Finding, Fix, Severity
from nccl_doctor.rules.engine import Host, host_rule
from nccl_doctor.rules.nvidia import (
    THROTTLE_IDS,
    THROTTLES,
    answered,
    default_power_limit,
    devices,
    need_fields,
    place,
    proof,
    reasons,
    throttle_fix,
    throttled_by,
)
from nccl_doctor.rules.thresholds import value

_REPLACE = Fix(
    "take the host out and replace the GPU (RMA); its vendor asks for this report", "sudo nvidia-bug-report.sh"
)
_RELOAD = Fix("drain the host and reboot it (or unload and load the driver)", "sudo reboot", risky=True)


@host_rule(
    "gpu",
    "gpu.ecc.uncorrectable",
    "gpu.ecc.row-remap-pending",
    "gpu.ecc.row-remap-failure",
    "gpu.ecc.retirement-pending",
    "gpu.ecc.sram-threshold",
    "gpu.ecc.corrected-many",
    "gpu.ecc.disabled",
)
def memory_errors(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU has uncorrectable memory errors since the driver was loaded, nor a repair that waits for a reset.

    Aggregate (lifetime) counts are no reason to act: the rows were remapped. A pending remap or page retirement means
    that the faulty row is still in use until the GPU is reset; a failed remap that no spare row is left.
    """
    gpus = devices(answered(host))
    for gpu in gpus:
        for id, title, quote, fix in _faults(gpu):
            yield host.finding(
                id,
                Severity.FAIL,
                title,
                proof(host, gpu, quote),
                fix,
                places=[place(host, gpu)],
                explains=("gpu.needs-reset",) if fix is not _REPLACE else (),
            )
        corrected = gpu.ecc_corrected_volatile or 0
        if corrected >= value("gpu.ecc.corrected.warn"):
            yield host.finding(
                "gpu.ecc.corrected-many",
                Severity.WARN,
                f"{corrected} corrected ECC errors on GPU {gpu.label} since the driver was loaded",
                proof(host, gpu, f"corrected volatile ECC errors: {corrected}"),
                places=[place(host, gpu)],
                confidence=0.8,
            )
    off = [gpu for gpu in gpus if gpu.ecc_mode is False]
    if off and len(off) < len(gpus):
        yield host.finding(
            "gpu.ecc.disabled",
            Severity.WARN,
            f"ECC is off on {len(off)} of {len(gpus)} GPUs",
            [proof(host, gpu, "ECC mode: disabled") for gpu in off[:4]],
            Fix("turn it on; it holds after the next reset", f"sudo nvidia-smi -i {off[0].index} -e 1"),
            places=[place(host, gpu) for gpu in off],
        )
    need_fields(gpus, "ECC counters", "ecc_mode", "ecc_uncorrected_volatile", "ecc_corrected_volatile")
    need_fields(gpus, "row-remap state", "remap_pending", "remap_failure", "retired_pages_pending")
    need_fields(gpus, "SRAM errors", "sram_threshold_exceeded")


def _reset(gpu: GpuDevice) -> Fix:
    drain = "drain the host, then reset this GPU (before Ampere: with all that it has NVLinks to)"
    return Fix(drain, f"sudo nvidia-smi --gpu-reset -i {gpu.index}", risky=True)


def _faults(gpu: GpuDevice) -> Iterator[tuple[str, str, str, Fix]]:
    """(finding id, title, what NVML says, what to do) of every fault of a GPU's memory."""
    if count := gpu.ecc_uncorrected_volatile:
        total = gpu.ecc_uncorrected_aggregate
        quote = f"uncorrected volatile ECC errors: {count}" + (f", lifetime {total}" if total is not None else "")
        yield "gpu.ecc.uncorrectable", f"uncorrectable ECC errors on GPU {gpu.label}", quote, _reset(gpu)
    if gpu.remap_failure:
        title = f"row remapping failed on GPU {gpu.label}: replace it"
        yield "gpu.ecc.row-remap-failure", title, "remapping failure occurred: Yes", _REPLACE
    if gpu.sram_threshold_exceeded:
        title = f"GPU {gpu.label} has had more SRAM errors than it may: replace it"
        yield "gpu.ecc.sram-threshold", title, "SRAM threshold exceeded: Yes", _REPLACE
    if gpu.remap_pending:
        rows = f"{gpu.remapped_uncorrectable} uncorrectable, {gpu.remapped_correctable} correctable"
        title = f"a row remap of GPU {gpu.label} waits for a reset"
        yield "gpu.ecc.row-remap-pending", title, f"row remap pending: Yes (remapped rows: {rows})", _reset(gpu)
    if gpu.retired_pages_pending:
        title = f"a page retirement of GPU {gpu.label} waits for the driver to be loaded anew"
        yield "gpu.ecc.retirement-pending", title, "pending page retirement: Yes", _RELOAD


@host_rule("gpu", "gpu.needs-reset")
def recovery_action(host: Host, plan: Plan) -> Iterator[Finding]:
    """The driver itself asks for no recovery action (drivers from R570 on tell)."""
    gpus = devices(answered(host))
    for gpu in gpus:
        if gpu.recovery_action in (None, "none"):
            continue
        yield host.finding(
            "gpu.needs-reset",
            Severity.FAIL,
            f"the driver asks for '{gpu.recovery_action}' of GPU {gpu.label}",
            proof(host, gpu, f"GPU recovery action: {gpu.recovery_action}"),
            _recovery(gpu),
            places=[place(host, gpu)],
        )
    need_fields(gpus, "recovery action", "recovery_action")


def _recovery(gpu: GpuDevice) -> Fix:
    """What to do about the action that the driver asks for; a reboot, where we do not know it."""
    if gpu.recovery_action in ("gpu-reset", "drain-and-reset"):
        return _reset(gpu)
    if gpu.recovery_action == "drain-p2p":
        text = "end the jobs on all GPUs that share NVLinks with this one; then see whether it still asks for more"
        return Fix(text, "nvidia-smi -q | grep -A2 'GPU Recovery Action'")
    if gpu.recovery_action == "recover-imex-domain":
        text = "end the jobs of its NVLink domain and restart the IMEX service on all hosts of it"
        return Fix(text, "sudo systemctl restart nvidia-imex", risky=True)
    return Fix("drain the host and reboot it", "sudo reboot", risky=True)


@host_rule("gpu", *THROTTLE_IDS, "gpu.thermal-power.hot", "gpu.thermal-power.power-cap")
def throttling(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU is slowed down by heat or by its power supply, and no power limit is far below the default.

    One throttled GPU slows the whole job: every collective waits for it. The software power cap is normal under load
    and no finding; an idle GPU's low clocks are none either.
    """
    gpus = devices(answered(host))
    for bit, id, words in THROTTLES:
        hit = [gpu for gpu in gpus if throttled_by(gpu.throttle_reasons or 0, bit)]
        if hit:
            yield _throttled(host, hit, len(gpus), id, words)
    for gpu in gpus:
        yield from _hot(host, gpu)
    yield from _capped(host, gpus)
    need_fields(gpus, "throttle reasons", "throttle_reasons")
    need_fields(gpus, "temperature", "temperature_c", "temperature_memory_c")
    need_fields(gpus, "power limit", "power_limit_w", "power_default_w")


def _throttled(host: Host, hit: list[GpuDevice], count: int, id: str, words: str) -> Finding:
    evidence = []
    for gpu in hit:
        clock = f", SM clock {gpu.clock_sm_mhz} of {gpu.clock_sm_max_mhz} MHz" if gpu.clock_sm_mhz else ""
        heat = f", {gpu.temperature_c} C" if gpu.temperature_c is not None else ""
        why = ", ".join(reasons(gpu.throttle_reasons or 0))
        evidence.append(proof(host, gpu, f"clocks event reasons: {why}{heat}{clock}"))
    who = f"GPU {hit[0].label}" if len(hit) == 1 else f"each of {len(hit)} GPUs (of {count})"
    return host.finding(
        id,
        Severity.WARN if id.endswith("hw-slowdown") else Severity.FAIL,
        f"{who} {words}",
        evidence,
        throttle_fix(id),
        places=[place(host, gpu) for gpu in hit],
    )


def _hot(host: Host, gpu: GpuDevice) -> Iterator[Finding]:
    core, memory, margin = gpu.temperature_c, gpu.temperature_memory_c, value("gpu.temperature.margin")
    if gpu.temperature_slowdown_c:
        limit = gpu.temperature_slowdown_c - margin
    elif gpu.temperature_margin_c is not None:  # drivers for Ada and later tell the distance instead of the threshold
        limit = (core or 0) + gpu.temperature_margin_c - margin
    else:
        limit = value("gpu.temperature.warn")
    memory_limit = float(gpu.temperature_memory_max_c or value("gpu.memory-temperature.warn"))
    too_hot = []
    if core is not None and core >= limit:
        too_hot.append(f"GPU {core} C (warned from {limit:.0f} C)")
    if memory is not None and memory >= memory_limit:
        too_hot.append(f"memory {memory} C (warned from {memory_limit:.0f} C)")
    if too_hot and not (gpu.throttle_reasons or 0) & 0x60:
        yield host.finding(
            "gpu.thermal-power.hot",
            Severity.WARN,
            f"GPU {gpu.label} is close to throttling",
            proof(host, gpu, ", ".join(too_hot)),
            places=[place(host, gpu)],
        )


def _capped(host: Host, gpus: list[GpuDevice]) -> Iterator[Finding]:
    share = value("gpu.power-limit.share")
    capped = [
        (gpu, limit, default)
        for gpu in gpus
        if (limit := gpu.power_limit_w) and (default := gpu.power_default_w) and limit < share * default
    ]
    if capped:
        yield host.finding(
            "gpu.thermal-power.power-cap",
            Severity.WARN,
            f"the power limit of {len(capped)} of {len(gpus)} GPUs is below the default",
            [proof(host, gpu, f"power limit {limit:.0f} W, default {default:.0f} W") for gpu, limit, default in capped],
            default_power_limit(capped[0][0].index, capped[0][2]),
            places=[place(host, gpu) for gpu, _, _ in capped],
        )
