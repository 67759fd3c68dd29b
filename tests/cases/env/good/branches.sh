#!/bin/bash
# One cluster has InfiniBand, the other none: the arms never meet.
case "$CLUSTER" in
  alpha)
    export NCCL_IB_HCA==mlx5_0,mlx5_1
    export NCCL_NET=IB
    ;;
  beta)
    export NCCL_NET=Socket
    export NCCL_SOCKET_NTHREADS=4
    export NCCL_NSOCKS_PERTHREAD=4
    ;;
esac
if [[ -n "${DEBUG:-}" ]]; then
  export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH
fi
python train.py
