"""What makes a job slow without failing it, as counters and reports tell: data, quotas, swapping, allocators, late ranks."""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "timers-across-ranks",
    "(min, max) time across ranks (ms):",
    why="The heading of Megatron's timers: what the fastest and the slowest rank needed for each part of a step.",
    rows=24,
    every=True,
)
says(
    "timers-of-each-rank",
    "times across ranks (ms):",
    why="The heading of Megatron's timers with --timing-log-option all: what each rank needed for each part of a step.",
    where=lambda groups, line: "(min, max)" not in line,
    rows=320,
    every=True,
)
says(
    "pipeline-stages",
    "pipeline_model_parallel_size {}. {stages:int}",
    "pipeline_model_parallel_size: {stages:int}",
    "pipeline_model_parallel_size={stages:int}",
    "--pipeline-model-parallel-size {stages:int}",
    sampled=True,
    why="Megatron or NeMo: over how many stages, each of the same number of ranks, the layers are spread.",
)
says(
    "data-share",
    "train_dataloader_next ",
    "].train_next ",
    "get_train_batch ",
    "enumerate(DataLoader)#{}%",
    sampled=True,
    why="A profile (Lightning's, torch.profiler's): what share of the time the loop waited for its next batch.",
)
says(
    "comms-straggler",
    "Total straggler(ms)",
    why="The heading of DeepSpeed's comms summary with stragglers: what a call needed, and what of it was waiting for the last rank.",
    rows=48,
)
says(
    "load-of-ranks",
    "tokens per {who} rank",
    "tokens_per_{who}rank",
    "tokens per {who} expert",
    "tokens_per_expert",
    "tokens per expert",
    "tokens per rank",
    "expert load",
    "expert_load",
    sampled=True,
    why="What part of the tokens a router sends to each expert, or to each rank of experts.",
)
says(
    "data-wait",
    *(f"{name}{sign}{{seconds:num}}" for name in ("dataloader_wait", "data_wait", "data_time") for sign in (": ", "=")),
    sampled=True,
    why="How many seconds of a step a rank waited for its batch, as Composer, mmengine and others report.",
)
says(
    "allocator-flushes",
    "pytorch allocator cache flushes since last step",
    role=Role.HARMLESS,
    why="DeepSpeed counts how often PyTorch gave its cached memory back during a step. Seldom, and in the first steps, it costs little.",
    every=True,
)
says(
    "allocator-retries",
    "CUDA memory allocation retries",
    role=Role.HARMLESS,
    why="torchtitan's count, since the start, of allocations that only succeeded once PyTorch had given its cached memory back.",
    every=True,
)
says(
    "cpu-throttled",
    "nr_throttled {throttled:int}",
    why="cpu.stat of a cgroup: in how many periods its processes had used up their CPU quota.",
)
says(
    "cpu-periods", "nr_periods {periods:int}", why="cpu.stat of a cgroup: how many periods its CPU quota was in force."
)
says(
    "vmstat",
    "--memory--{}--swap--",
    why="The heading of vmstat, whose columns si and so are what is read from and written to swap.",
    rows=12,
)
says(
    "free",
    "total {}used {}free {}shared {}buff/cache {}available",
    why="The heading of free: a host's memory and swap.",
    rows=2,
)
says(
    "store-throttles",
    "An error occurred (SlowDown) when calling",
    "Please reduce your request rate",
    "An error occurred (503) when calling",
    "<Code>SlowDown</Code>",
    "exceeded the rate limit for object",
    "ErrorCode:ServerBusy",
    "per second is over the account limit",
    cause="sys.clock-or-dns-or-fs",
    strength=0.46,
    title="the object store refuses requests because there are too many of them",
    why="S3 (SlowDown), Google Cloud Storage (429) and Azure (ServerBusy) limit requests for each prefix, object or account; clients try again, more slowly.",
)
