mpirun --hostfile hosts -np 32 --bind-to none \
    -x NCCL_DEBUG=INFO \
    -x NCCL_IB_CUDA_SUPPORT=1 \
    -x NCCL_RINGS="0 1 2 3" \
    -x NCCL_SOCKET_IFNAME=^docker0,virbr0 \
    --mca btl_tcp_if_include eth0 \
    python train.py
mpiexec -genv NCCL_IB_QPS 4 -n 8 ./all_reduce_perf
