#!/bin/bash
# The cheat sheet that goes round.
export NCCL_DEBUG=INFO
export NCCL_TIMEOUT=1800
export TORCH_DISTRIBUTED_TIMEOUT=3600
export NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_BLOCKING_WAIT=1
export NCCL_TREE_THRESHOLD=0
export NCCL_LL_THRESHOLD=0
export NCCL_MIN_NRINGS=8
export NCCL_IB_TIMEOUT=20
export NCCL_IB_GID_INDEX=3
export NCCL_P2P_LEVEL=PIX
export NCCL_ALGO=Ring
export NCCL_PROTO=Simple
export NCCL_NTHREADS=512
export NCCL_BUFFSIZE=8388608
torchrun --nproc_per_node=8 train.py
