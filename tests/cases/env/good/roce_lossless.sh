# RoCE: switches map DSCP 26 to the lossless class.
export NCCL_IB_TC=104
export NCCL_IB_TIMEOUT=22
export NCCL_IB_RETRY_CNT=7
export NCCL_DEBUG=warn
exec mpirun -np 64 --hostfile hosts -x NCCL_DEBUG -x NCCL_IB_TC -x NCCL_IB_TIMEOUT -x LD_LIBRARY_PATH ./all_reduce_perf -b 8 -e 8G -f 2
