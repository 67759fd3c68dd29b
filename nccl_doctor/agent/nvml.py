"""What NVML says of this host's GPUs, asked through pynvml inside a child process that can be killed.

Every answer is a value, or its absence has a reason: a call that the driver does not support is listed in
``not_supported`` (never a zero), one that needs more rights in ``not_permitted``, and one that failed in ``errors``.
"""

import ctypes
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

Report = Callable[[Any], None]

# Field, call, arguments: the call's answer is the value, text decoded and power in watts. Of two calls the second is asked
# where there is no first: CUDA 14 drops nvmlDeviceGetTemperature and ...ThrottleReasons (nvml.h of CUDA 13), and ...V and
# ...EventReasons are not in all drivers that are in use.
_SIMPLE = (
    ("uuid", "nvmlDeviceGetUUID", ()),
    ("name", "nvmlDeviceGetName", ()),
    ("serial", "nvmlDeviceGetSerial", ()),
    ("board_part", "nvmlDeviceGetBoardPartNumber", ()),
    ("vbios", "nvmlDeviceGetVbiosVersion", ()),
    ("inforom", "nvmlDeviceGetInforomImageVersion", ()),
    ("gsp_firmware", "nvmlDeviceGetGspFirmwareVersion", ()),
    ("minor", "nvmlDeviceGetMinorNumber", ()),
    ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("pcie_gen_gpu_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration", ()),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("pcie_replays", "nvmlDeviceGetPcieReplayCounter", ()),
    ("temperature_c", "nvmlDeviceGetTemperature nvmlDeviceGetTemperatureV", (0,)),
    ("temperature_shutdown_c", "nvmlDeviceGetTemperatureThreshold", (0,)),
    ("temperature_slowdown_c", "nvmlDeviceGetTemperatureThreshold", (1,)),
    ("temperature_memory_max_c", "nvmlDeviceGetTemperatureThreshold", (2,)),
    ("temperature_margin_c", "nvmlDeviceGetMarginTemperature", ()),
    ("memory_numa_node", "nvmlDeviceGetNumaNodeId", ()),
    ("power_w", "nvmlDeviceGetPowerUsage", ()),
    ("power_limit_w", "nvmlDeviceGetPowerManagementLimit", ()),
    ("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", ()),
    ("power_enforced_w", "nvmlDeviceGetEnforcedPowerLimit", ()),
    ("clock_sm_mhz", "nvmlDeviceGetClockInfo", (1,)),
    ("clock_memory_mhz", "nvmlDeviceGetClockInfo", (2,)),
    ("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", (1,)),
    ("clock_memory_max_mhz", "nvmlDeviceGetMaxClockInfo", (2,)),
    ("clock_sm_application_mhz", "nvmlDeviceGetApplicationsClock", (1,)),
    ("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    ("performance_state", "nvmlDeviceGetPerformanceState", ()),
    ("persistence_mode", "nvmlDeviceGetPersistenceMode", ()),
    ("compute_mode", "nvmlDeviceGetComputeMode", ()),
    ("ecc_corrected_volatile", "nvmlDeviceGetTotalEccErrors", (0, 0)),
    ("ecc_uncorrected_volatile", "nvmlDeviceGetTotalEccErrors", (1, 0)),
    ("ecc_corrected_aggregate", "nvmlDeviceGetTotalEccErrors", (0, 1)),
    ("ecc_uncorrected_aggregate", "nvmlDeviceGetTotalEccErrors", (1, 1)),
    ("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", ()),
)

_MILLIWATTS = ("power_w", "power_limit_w", "power_default_w", "power_enforced_w")
_FABRIC_STATES = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
_NVLINK_ERRORS = (("replay", 0), ("recovery", 1), ("crc_flit", 2), ("crc_data", 3))
# NVLink 5 (Blackwell) has other counters, as field values per link: NVML_FI_DEV_NVLINK_COUNT_*.
_NVLINK5_ERRORS = (("recovery_failed", 214), ("integrity", 211))
# Bits 8 to 11 of the fabric's health mask: NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*; 0 and 1 are no fault.
_FABRIC_MISTAKES = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
_REMOTE_TYPES = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}
_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_LEVELS = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# NVML's return codes that mean "this driver or this GPU has no such thing": invalid argument (an enumerator that it does
# not know: our handles are good), not supported, function not found, no data, ECC not supported on a vGPU, a
# structure's version that the driver does not know, deprecated.
_UNSUPPORTED = (2, 3, 13, 21, 22, 25, 26)
_NO_PERMISSION = 4
_HOTTEST_C = 200  # a threshold beyond is none: drivers since Ada may give a (negative) distance instead
# What changes while a job runs, and costs one call each. NVLink's counters are sums over all links of the GPU.
_SAMPLED = (
    "temperature_c",
    "power_w",
    "power_limit_w",
    "clock_sm_mhz",
    "throttle_reasons",
    "pcie_replays",
    "ecc_uncorrected_volatile",
)
_SAMPLED_FIELDS = {52: "nvlink_replays", 59: "nvlink_recoveries"}  # NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL
# The same of one link, and what NVLink 5 has instead: of GPUs that tell no totals, summed over their links.
_SAMPLED_LINK_ERRORS = (("nvlink_replays", 0), ("nvlink_recoveries", 1))
_SAMPLED_NVLINK5 = ("nvlink_failed_recoveries", "nvlink_integrity_errors")  # in the order of _NVLINK5_ERRORS
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_RECOVERY_ACTION = 230


class _Asker:
    """Asks NVML one call at a time, says which call is under way, and files every refusal under its reason."""

    def __init__(self, nvml: Any, report: Report, gpu: Optional[int], into: Dict[str, Any]) -> None:
        self.nvml = nvml
        self.report = report
        self.gpu = gpu
        self.into = into
        for key in ("not_supported", "not_permitted"):
            into.setdefault(key, [])
        into.setdefault("errors", {})

    def ask(self, field: str, call: str, *arguments: Any) -> Any:
        """The call's answer, or None with the reason filed under ``field``: all that it would fill, between blanks."""
        function = getattr(self.nvml, call, None)
        if function is None:
            self._refuse("not_supported", field)
            return None
        self.report({"at": call, "gpu": self.gpu})
        try:
            answer = function(*arguments)
        except self.nvml.NVMLError as error:
            self._file(field, call, error)
            return None
        except (UnicodeDecodeError, ValueError, TypeError) as error:  # a pynvml that does not fit the driver
            self._fail(field, "%s: %s: %s" % (call, type(error).__name__, error))
            return None
        except getattr(self.nvml, "NVMLLibraryMismatchError", ()):  # no NVMLError: a driver older than the call
            self._refuse("not_supported", field)
            return None
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def _file(self, field: str, call: str, error: Any, code: Optional[int] = None) -> None:
        code = getattr(error, "value", code)
        if code in _UNSUPPORTED:
            self._refuse("not_supported", field)
        elif code == _NO_PERMISSION:
            self._refuse("not_permitted", field)
        else:
            self._fail(field, "%s: %s" % (call, error))

    def ask_any(self, field: str, calls: Sequence[str], *arguments: Any) -> Any:
        """The answer of the first call that this pynvml and driver have; refused only where none has one."""
        for call in calls:
            self.forget(field)
            answer = self.ask(field, call, *arguments)
            if answer is not None or field not in self.into["not_supported"]:
                return answer
        return None

    def forget(self, field: str) -> None:
        """Take back what was filed for ``field``: another call may still answer."""
        for reason in ("not_supported", "not_permitted"):
            if field in self.into[reason]:
                self.into[reason].remove(field)
        self.into["errors"].pop(field, None)

    def _refuse(self, reason: str, field: str) -> None:
        self.into[reason] += [name for name in field.split() if name not in self.into[reason]]

    def _fail(self, field: str, text: str) -> None:
        self.into["errors"].update(dict.fromkeys(field.split(), text))


def collect(nvml: Any, report: Report, use_only: bool = False) -> None:
    """Report everything, step by step: ``{"at": ...}`` before each call, then ``{"system": ...}``, ``{"gpu": ...}``.

    ``use_only``: of each GPU only who uses it and how much, which is a few calls.
    """
    if not _started(nvml, report):
        return
    system: Dict[str, Any] = {}
    asker = _Asker(nvml, report, None, system)
    system["driver"] = asker.ask("driver", "nvmlSystemGetDriverVersion")
    system["library"] = asker.ask("library", "nvmlSystemGetNVMLVersion")
    cuda = asker.ask("cuda_driver", "nvmlSystemGetCudaDriverVersion_v2")
    system["cuda_driver"] = None if cuda is None else "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
    system["count"] = _count(asker)
    report({"system": system})
    if system["count"] is None:
        return
    handles: Dict[int, Any] = {}
    for index in range(system["count"]):
        gpu: Dict[str, Any] = {"index": index}
        asker = _Asker(nvml, report, index, gpu)
        handle = asker.ask("handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            handles[index] = handle
            (_use if use_only else _gpu)(asker, handle)
        elif "handle" in gpu["not_supported"]:
            asker.forget("handle")
            asker._fail("handle", "nvmlDeviceGetHandleByIndex: this GPU was counted, and NVML has none of this index")
        report({"gpu": gpu})
    if not use_only:
        _pairs(nvml, report, handles)
    report({"done": True})


def call_of(step: Dict[str, Any]) -> str:
    """``nvmlDeviceGetUUID of GPU 3``: the call that was under way when this was the last step that was reported."""
    return str(step.get("at", "start")) + ("" if step.get("gpu") is None else " of GPU %d" % step["gpu"])


def _started(nvml: Any, report: Report) -> bool:
    report({"at": "nvmlInit", "gpu": None})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        report({"failed": {"call": "nvmlInit", "code": getattr(error, "value", None), "text": str(error)}})
        return False
    return True


def _count(asker: _Asker) -> Optional[int]:
    """How many GPUs there are; where NVML does not say, it has failed: no GPU is not what it said."""
    count = asker.ask("count", "nvmlDeviceGetCount")
    if count is None:
        refused = "count" in asker.into["not_permitted"]
        why = asker.into["errors"].get("count", ": not permitted" if refused else ": not supported").partition(": ")[2]
        failed = {"call": "nvmlDeviceGetCount", "code": _NO_PERMISSION if refused else None, "text": why}
        asker.report({"failed": failed})
        return None
    return int(count)


def sample(nvml: Any, report: Report, every_s: float) -> None:
    """Report ``{"samples": [...]}`` every so many seconds, until this process is ended: NVML is started once."""
    if not _started(nvml, report):
        return
    asker = _Asker(nvml, report, None, {})
    count = _count(asker)
    if count is None:
        return
    gpus = []
    for index in range(count):
        handle = asker.ask("handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            # Which GPU has an index changes where one is lost, and NVML is started again.
            _address(asker, handle)
            states = [
                asker.ask("links", "nvmlDeviceGetNvLinkState", handle, link)
                for link in range(nvml.NVML_NVLINK_MAX_LINKS)
            ]
            links = [link for link, state in enumerate(states) if state]
            gpus.append((index, asker.into["bus_id"], handle, links))
    while True:
        started = time.monotonic()
        told = [
            dict(_sample(nvml, report, index, handle, up), index=index, bus_id=bus) for index, bus, handle, up in gpus
        ]
        report({"samples": told, "at_s": started, "cost_s": sum(os.times()[:2])})
        time.sleep(max(0.0, started + every_s - time.monotonic()))


def _sample(nvml: Any, report: Report, index: int, handle: Any, links: Sequence[int]) -> Dict[str, Any]:
    asker = _Asker(nvml, report, index, {})
    gpu = _simple(asker, handle, _SAMPLED)
    gpu["utilization_percent"] = _utilization(asker, handle)
    _memory(asker, handle, gpu)
    call = "nvmlDeviceGetFieldValues"
    for value in asker.ask(" ".join(_SAMPLED_FIELDS.values()), call, handle, list(_SAMPLED_FIELDS)) or ():
        field = _SAMPLED_FIELDS[value.fieldId]
        if value.nvmlReturn == 0:
            gpu[field] = int(value.value.ullVal)
        else:
            asker._file(field, call, "NVML error %d" % value.nvmlReturn, value.nvmlReturn)
    if not links:
        asker._refuse("not_supported", " ".join(_SAMPLED_NVLINK5))
    elif not any(field in gpu for field in _SAMPLED_FIELDS.values()):
        _sum_over_links(asker, handle, gpu, links)
    told = {name: value for name, value in gpu.items() if value is not None}
    refused = {name: why.replace("_", " ") for why in ("not_supported", "not_permitted") for name in asker.into[why]}
    return dict(told, refused={**refused, **asker.into["errors"]})


def _sum_over_links(asker: _Asker, handle: Any, gpu: Dict[str, Any], links: Sequence[int]) -> None:
    """The error counters of NVLinks that are up, one by one; that none of them has any is no GPU without errors."""
    for name, counter in _SAMPLED_LINK_ERRORS:
        counts = [asker.ask(name, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter) for link in links]
        told = [int(count) for count in counts if count is not None]
        gpu[name] = sum(told) if told else None
    if all(gpu[name] is None for name, _ in _SAMPLED_LINK_ERRORS):
        call = "nvmlDeviceGetFieldValues"
        for name, (_, field) in zip(_SAMPLED_NVLINK5, _NVLINK5_ERRORS):
            values = asker.ask(name, call, handle, [(field, link) for link in links]) or ()
            gpu[name] = sum(int(value.value.ullVal) for value in values if value.nvmlReturn == 0)
            for value in values:
                if value.nvmlReturn != 0:
                    asker._file(name, call, "field %d: NVML error %d" % (field, value.nvmlReturn), value.nvmlReturn)
            if all(value.nvmlReturn != 0 for value in values):
                gpu[name] = None
    names = {*(name for name, _ in _SAMPLED_LINK_ERRORS), *_SAMPLED_NVLINK5}
    if all(gpu.get(name) is None for name in names) and not names & {
        *asker.into["errors"],
        *asker.into["not_permitted"],
    }:
        asker._fail(_SAMPLED_NVLINK5[0], "%d NVLinks are up, and NVML tells no error counter of any" % len(links))


def bus_id(text: str) -> str:
    """A PCI address as sysfs writes it: ``00000000:3B:00.0`` becomes ``0000:3b:00.0``."""
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return "%04x:%s" % (int(domain, 16), rest)
    except ValueError:
        return text.strip().lower()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _simple(asker: _Asker, handle: Any, wanted: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """What the simple calls answer: of the fields that are wanted, or of all."""
    told = {
        field: asker.ask_any(field, calls.split(), handle, *arguments)
        for field, calls, arguments in _SIMPLE
        if wanted is None or field in wanted
    }
    for field in _MILLIWATTS:
        if told.get(field) is not None:
            told[field] /= 1000.0
    return told


def _address(asker: _Asker, handle: Any) -> None:
    pci = asker.ask("bus_id", "nvmlDeviceGetPciInfo", handle)
    asker.into["bus_id"] = None if pci is None else bus_id(_text(pci.busId))
    asker.into["pci_device_id"] = None if pci is None else "%08x" % pci.pciDeviceId


def _gpu(asker: _Asker, handle: Any) -> None:
    gpu = asker.into
    _address(asker, handle)
    gpu.update(_simple(asker, handle))
    for field in ("slowdown", "shutdown", "memory_max"):
        if (gpu["temperature_%s_c" % field] or 0) > _HOTTEST_C:
            gpu["temperature_%s_c" % field] = None
            asker._refuse("not_supported", "temperature_%s_c" % field)
    if gpu["compute_mode"] is not None:
        gpu["compute_mode"] = _COMPUTE_MODES.get(gpu["compute_mode"], str(gpu["compute_mode"]))
    for field in ("persistence_mode", "retired_pages_pending"):
        if gpu[field] is not None:
            gpu[field] = bool(gpu[field])
    _structures(asker, handle)
    _fabric(asker, handle)
    _field_values(asker, handle)
    gpu["nvlinks"] = _nvlinks(asker, handle)
    gpu["processes"] = _processes(asker, handle)


_USE = ("uuid", "name", "serial", "power_w", "power_limit_w", "power_default_w", "clock_sm_max_mhz")


def _use(asker: _Asker, handle: Any) -> None:
    _address(asker, handle)
    asker.into.update(_simple(asker, handle, _USE))
    asker.into["utilization_percent"] = _utilization(asker, handle)
    asker.into["processes"] = _processes(asker, handle)


def _utilization(asker: _Asker, handle: Any) -> Optional[int]:
    use = asker.ask("utilization_percent", "nvmlDeviceGetUtilizationRates", handle)
    return None if use is None else int(use.gpu)


def _structures(asker: _Asker, handle: Any) -> None:
    gpu = asker.into
    _memory(asker, handle, gpu)
    bar1 = asker.ask("bar1_total_bytes", "nvmlDeviceGetBAR1MemoryInfo", handle)
    gpu["bar1_total_bytes"] = None if bar1 is None else bar1.bar1Total
    capability = asker.ask("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle)
    gpu["compute_capability"] = None if capability is None else "%d.%d" % tuple(capability)
    gpu["utilization_percent"] = _utilization(asker, handle)
    for field, call in (("ecc_mode", "nvmlDeviceGetEccMode"), ("mig_mode", "nvmlDeviceGetMigMode")):
        modes = asker.ask("%s %s_pending" % (field, field), call, handle)
        gpu[field] = None if modes is None else bool(modes[0])
        gpu[field + "_pending"] = None if modes is None else bool(modes[1])
    remaps = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure")
    rows = asker.ask(" ".join(remaps), "nvmlDeviceGetRemappedRows", handle)
    for position, field in enumerate(remaps):
        gpu[field] = None if rows is None else (int(rows[position]) if position < 2 else bool(rows[position]))
    field = "sram_threshold_exceeded"
    gpu[field] = None
    kind = getattr(asker.nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if kind is None:
        asker._refuse("not_supported", field)
        return
    status = kind()
    if asker.ask(field, "nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status)) is not None:
        gpu[field] = bool(status.bThresholdExceeded)


def _memory(asker: _Asker, handle: Any, gpu: Dict[str, Any]) -> None:
    # The second version (R510) does not count what the driver keeps for itself as used: it grows with the memory.
    names, call = "memory_total_bytes memory_used_bytes", "nvmlDeviceGetMemoryInfo"
    memory = asker.ask(names, call, handle, asker.nvml.nvmlMemory_v2)
    if memory is None:
        for name in names.split():
            asker.forget(name)
        memory = asker.ask(names, call, handle)
    gpu["memory_total_bytes"] = None if memory is None else memory.total
    gpu["memory_used_bytes"] = None if memory is None else memory.used


def _fabric(asker: _Asker, handle: Any) -> None:
    """Fabric state (NVSwitch machines from Hopper on): the versioned call where both sides know it, else the first."""
    nvml, gpu = asker.nvml, asker.into
    gpu["fabric"] = None
    asker._refuse("not_supported", "fabric")
    for call, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        kind = getattr(nvml, structure, None)
        if kind is None:
            continue
        info = kind()
        asker.forget("fabric")
        if asker.ask("fabric", call, handle, ctypes.byref(info)) is None:
            if "fabric" in gpu["not_supported"]:
                continue
            return  # a refusal stands, whatever the older call would say
        mask = getattr(info, "healthMask", None)
        state = int(info.state) & 0xFF  # one byte in the driver, four in pynvml
        gpu["fabric"] = {
            "state": _FABRIC_STATES.get(state, str(state)),
            "status": int(info.status),
            "cluster": bytes(bytearray(info.clusterUuid)).hex(),
            "clique": int(info.cliqueId),
            # two bits each: 0 not supported, 1 yes, 2 no
            "degraded_bandwidth": None if mask is None else (mask & 3) == 1,
            "route_recovery": None if mask is None else (mask >> 2 & 3) == 1,
            "route_unhealthy": None if mask is None else (mask >> 4 & 3) == 1,
            "access_timeout": None if mask is None else (mask >> 6 & 3) == 1,
            "mistake": None if mask is None else _FABRIC_MISTAKES.get(mask >> 8 & 15),
        }
        return


def _field_values(asker: _Asker, handle: Any) -> None:
    gpu = asker.into
    names = {_FIELD_MEMORY_TEMPERATURE: "temperature_memory_c", _FIELD_RECOVERY_ACTION: "recovery_action"}
    call = "nvmlDeviceGetFieldValues"
    gpu.update(dict.fromkeys(names.values()))
    for value in asker.ask(" ".join(names.values()), call, handle, list(names)) or ():
        field, number = names.get(value.fieldId), int(value.value.uiVal)
        if field and value.nvmlReturn != 0:
            asker._file(field, call, "field %d: NVML error %d" % (value.fieldId, value.nvmlReturn), value.nvmlReturn)
        elif field == "recovery_action":
            gpu[field] = _RECOVERY_ACTIONS.get(number, str(number))
        elif field:
            gpu[field] = number


def _nvlinks(asker: _Asker, handle: Any) -> Optional[List[Dict[str, Any]]]:
    """The GPU's NVLinks by number; an empty list where the driver knows none of them, None where it does not say.

    Those before the first of which it does not say (``errors`` has why) are kept.
    """
    scratch: Dict[str, Any] = {}
    probe = _Asker(asker.nvml, asker.report, asker.gpu, scratch)
    links: List[Dict[str, Any]] = []
    for link in range(asker.nvml.NVML_NVLINK_MAX_LINKS):
        state = probe.ask("state", "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            if "state" in scratch["errors"] or "state" in scratch["not_permitted"]:
                asker._fail("nvlinks", scratch["errors"].get("state", "not permitted"))
                return links or None
            probe.forget("state")
            continue  # no such link: numbers may have gaps (H800, A800)
        entry: Dict[str, Any] = {"link": link, "active": bool(state)}
        if state:
            entry["version"] = probe.ask("version", "nvmlDeviceGetNvLinkVersion", handle, link)
            remote = probe.ask("remote", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            entry["remote"] = bus_id(_text(remote.busId)) if remote is not None else None
            kind = probe.ask("remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            entry["remote_type"] = None if kind is None else _REMOTE_TYPES.get(kind, str(kind))
        for name, counter in _NVLINK_ERRORS:
            entry[name] = probe.ask(name, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
        if all(entry[name] is None for name, _ in _NVLINK_ERRORS):
            _nvlink5_errors(probe, handle, entry)
        links.append(entry)
    for name in ("fields", *(name for name, _ in _NVLINK_ERRORS)):
        if name in scratch["not_permitted"] or name in scratch["errors"]:
            asker._fail("nvlink_counters", scratch["errors"].get(name, "not permitted"))
    return links


def _nvlink5_errors(asker: _Asker, handle: Any, entry: Dict[str, Any]) -> None:
    wanted = [(field, entry["link"]) for _, field in _NVLINK5_ERRORS]
    values = asker.ask("fields", "nvmlDeviceGetFieldValues", handle, wanted)
    for (name, _), value in zip(_NVLINK5_ERRORS, values or ()):
        entry[name] = int(value.value.ullVal) if value.nvmlReturn == 0 else None


def _processes(asker: _Asker, handle: Any) -> Optional[List[Dict[str, Any]]]:
    found: List[Dict[str, Any]] = []
    for field, kind, call in (
        ("processes_graphics", "graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
        ("processes", "compute", "nvmlDeviceGetComputeRunningProcesses"),
    ):
        listed = asker.ask_any(field, (call, call + "_v2"), handle)
        for process in listed or ():
            found.append({"pid": int(process.pid), "memory_bytes": process.usedGpuMemory, "kind": kind})
    return found if listed is not None else None  # those that compute were told


def _pairs(nvml: Any, report: Report, handles: Dict[int, Any]) -> None:
    """P2P status (read, write, NVLink) and the nearest common ancestor of every pair of GPUs."""
    pairs: List[Dict[str, Any]] = []
    for a in sorted(handles):
        for b in sorted(handles):
            if a >= b:
                continue
            pair: Dict[str, Any] = {"a": a, "b": b}
            asker = _Asker(nvml, report, a, {})
            for name, capability in (("read", 0), ("write", 1), ("nvlink", 2)):
                status = asker.ask(name, "nvmlDeviceGetP2PStatus", handles[a], handles[b], capability)
                pair[name] = None if status is None else _P2P_STATUS.get(status, str(status))
            level = asker.ask("level", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            pair["level"] = None if level is None else _LEVELS.get(level, str(level))
            pair["errors"] = {**dict.fromkeys(asker.into["not_permitted"], "not permitted"), **asker.into["errors"]}
            pairs.append(pair)
    report({"pairs": pairs})
