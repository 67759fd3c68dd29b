#!/bin/bash
# PyTorch 2.6: leave a trace behind when the job hangs.
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/traces/nccl_trace_rank_
torchrun --nproc-per-node 8 train.py
