"""AWS Trainium and Inferentia: the Neuron runtime's own words. What its collectives say over EFA is NCCL's, and read as such."""

from __future__ import annotations

from nccl_doctor.explain.signatures import says

# Messages from the Neuron runtime's troubleshooting guide; read 2026-11
says(
    "neuron-driver",
    "Unable to determine Neuron Driver version",
    "This runtime requires Neuron Driver version",
    "is not compatible with the installed aws-neuron",
    "failed programming the engine",
    cause="gpu.driver",
    page="gpu.driver.neuron",
    strength=0.92,
    title="the Neuron driver is not loaded, or older than the runtime needs",
    why="The runtime in the image or the environment is of a newer release than the host's kernel module, or the module could not be loaded again after an update.",
)
says(
    "neuron-core-held",
    "Neuron Core(s) not available - Requested:",
    "NeuronCore(s) not available - Requested:",
    cause="gpu.not-visible",
    page="gpu.not-visible.neuron",
    strength=0.9,
    title="a process asks for Neuron cores that another one holds, or that are not here",
    why="A Neuron core serves one process at a time: two ranks got the same, an earlier job has not ended, or a notebook holds them.",
)
says(
    "neuron-device-missing",
    "Neuron cores are not contiguous",
    "Could not open the nd{device:int}",
    "NRT:nrt_init{}Failed to initialize devices, error:{code:int}",
    cause="gpu.not-visible",
    page="gpu.not-visible.neuron",
    strength=0.78,
    title="the Neuron devices that a process asks for cannot be opened",
    why="Fewer devices than asked for are in the instance or its container, they do not follow each other, or an earlier program left them running.",
)
says(
    "neuron-memory-error",
    "NRT_EXEC_HW_ERR_HBM_UE",
    "NRT_EXEC_HW_ERR_NC_UE",
    "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE",
    cause="gpu.ecc",
    strength=0.9,
    title="uncorrectable memory error on a Neuron device",
    why="The runtime's status says so: restart the instance, or replace it.",
)
