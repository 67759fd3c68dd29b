"""Bench: plan, run, judge. Collective benchmarks over torch.distributed with a proved path and a verdict."""
