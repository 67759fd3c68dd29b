#!/usr/bin/env bash
# A preflight before the job; its own variables are nobody's mistake.
export NCCL_DOCTOR_DEBUG=1
export NCCL_DEBUG=WARN
nccl-doctor preflight --slurm --profile quick -- torchrun --nproc-per-node 8 train.py
