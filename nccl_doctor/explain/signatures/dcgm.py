"""DCGM's health watches and diagnostics (dcgmi health, dcgmi diag), as node checks print them."""

from __future__ import annotations

import re

from nccl_doctor.explain.signatures import says

says(
    "dcgm-memory",
    "volatile double-bit ECC error",
    "faulty memory elements on GPU {gpu:int}",
    "NaN-value memory elements on GPU {gpu:int}",
    "A memory mismatch was detected on GPU {gpu:int}",
    "had uncorrectable memory errors and",
    "had memory errors and row remappings are pending",
    "Pending page retirements together with a DBE were detected",
    "retired pages: the limit has been reached",
    "retired pages. A maximum of",
    "indicated that a double-bit ECC error has",
    "Detected a miscompare failure in the L1 cache",
    "retired pages due to DBEs",
    "corrupt InfoROM",
    "A pending retired page has been detected",
    "row remapping failed",
    cause="gpu.ecc",
    strength=0.9,
    title="DCGM found a memory fault on a GPU",
    why="A DCGM test read back other bytes than it wrote, or counts errors that ECC cannot correct.",
    where=lambda groups, line: re.search(r"\b(?:Found|Detected) 0 ", line) is None,
)
says(
    "dcgm-row",
    "| Fail",
    "system {}| Warning",
    why="A row of dcgmi diag or dcgmi health that failed; its first cell names the test, the lines below say what was found.",
    pattern=re.compile(r"\|\s*(?:Fail(?:ure)?|Warning)\b"),
    rows=8,
)
says(
    "pcie-width",
    "LnkSta:{}Width x{width:int} (downgraded)",
    why="lspci: a PCIe link has fewer lanes than it could have.",
)
says(
    "dcgm-heat",
    "There were thermal violations totaling",
    "Thermal violations totaling",
    "clock throttling due to thermal violation",
    "clock throttling due to power violation",
    "Clocks are being throttled for GPU {gpu:int}",
    "exceeded user-specified maximum allowed temperature",
    "did not reach desired power minimum",
    cause="gpu.thermal-power",
    strength=0.85,
    title="DCGM saw a GPU throttled by heat or power",
    why="DCGM watched the clocks of a GPU go down for heat or power.",
    where=lambda groups, line: "totaling 0.0 " not in line,
)
says(
    "dcgm-slow",
    "did not reach desired stress level",
    "gflops for GPU {gpu:int} which is below the threshold",
    "only achieved a memory bandwidth of",
    cause="gpu.thermal-power",
    strength=0.62,
    title="DCGM measured a GPU that computes or moves less than it should",
    why="Below DCGM's threshold under full load: throttled by heat or power, or a board that is failing.",
)
says(
    "dcgm-gone",
    "The number of devices NVML returns is different than the number",
    "is no longer bound to a CUDA context",
    cause="gpu.fell-off-bus",
    strength=0.7,
    title="DCGM lost a GPU",
    why="The driver lists fewer GPUs than the machine has devices, or a GPU vanished under a test.",
)
says(
    "dcgm-metric",
    'DCGM_FI_DEV_{name}"} {value:num}',
    why="A DCGM exporter's metric; what a value other than 0 proves depends on its name (see the diagnosis dcgm_metrics).",
    where=lambda groups, line: float(groups["value"]) != 0,
)
says(
    "dcgm-nvlink",
    "NvLink link {link:int} is currently down",
    "NvLink port {link:int} is currently down",
    "NvLink {link:int} is down",
    "Detected fatal errors on NvSwitch",
    "Detected fatal NvSwitch SXID",
    "NvLink errors found {}per second on GPU",
    "NvLink errors on GPU {}(should be 0)",
    cause="gpu.nvlink",
    strength=0.9,
    title="DCGM found an NVLink that is down or fails",
    why="A link of a GPU or of an NVSwitch is down, or it counts errors beyond DCGM's limit.",
    where=lambda groups, line: "Detected 0 " not in line,
)
says(
    "dcgm-nvlink-count",
    "[health] node {node:word}: NvSwitch {switch:int} - Only {up:int} NvLinks are up out of the expected {expected:int}",
    "NvLinks are up out of the expected {expected:int}",
    cause="gpu.nvlink",
    strength=0.8,
    title="fewer NVLinks are up than there should be",
    why="DCGM expects more links than are up: a link is broken, or the fabric manager has not trained them.",
)
says(
    "dcgm-peer",
    "was unsuccessfully written to in a peer-to-peer test",
    "unsuccessfully wrote data in a peer-to-peer test",
    cause="gpu.p2p",
    strength=0.85,
    title="DCGM's peer-to-peer test wrote wrong data or none",
    why="A write from one GPU to another did not arrive as written.",
)
says(
    "dcgm-exporter-ends",
    'level=fatal msg="Failed to watch metrics: {error}"',
    'level=fatal msg="Error watching fields: {error}"',
    cause="unrelated",
    strength=0.62,
    title="dcgm-exporter ends ({error}): this node has no metrics, and jobs do not need them",
    why="Monitoring alone: profiling metrics are not for this GPU, a second exporter or a profiler holds them, or DCGM's module does not fit the driver.",
)
says(
    "dcgm-without-engine",
    "Host engine connection invalid/disconnected",
    "CacheManager Init Failed. Error: {code}",
    "Unable to connect to host engine",
    "nable to establish a connection to the specified host",
    cause="unrelated",
    strength=0.5,
    title="DCGM did not start, or a client of it lost the connection: monitoring alone, which jobs do not need",
    why="Metrics or a diagnostic are missing. -17 is a lack of permission (SYS_ADMIN, root); a connection ends when nv-hostengine ends, or is of another release.",
)
says(
    "dcgm-pcie",
    "is running at PCI link generation {have:int}, which is below",
    "is running at PCI link width {have}, which is below",
    "host-side PCIe replay violation",
    "PCIe replays per minute for GPU",
    "did not exceed minimum required bandwidth of",
    cause="net.slow",
    strength=0.62,
    title="a GPU's PCIe link is narrower or slower than it should be, or repeats packets",
    why="DCGM: PCIe generation, width, bandwidth or replays are outside the limits; transfers over it are slow. An idle GPU lowers its generation by itself.",
)
