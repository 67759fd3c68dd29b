#!/usr/bin/env bash
# Two nodes, nothing set by hand: NCCL chooses.
set -euo pipefail
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=8
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
  --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" train.py
