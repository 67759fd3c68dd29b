#!/bin/bash
# What the site profile sets is taken back for this job.
export NCCL_P2P_DISABLE=1
unset NCCL_P2P_DISABLE
unset NCCL_IB_DISABLE
torchrun --nproc-per-node 8 train.py
