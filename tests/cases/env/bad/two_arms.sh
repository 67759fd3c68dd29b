#!/bin/bash
if lspci | grep -q Mellanox; then
    export NCCL_IB_HCA==mlx5_0
    export NCCL_NET=IB
else
    export NCCL_IB_DISABLE=1
fi
if [ "$HOSTNAME" = a ]; then export NCCL_SOCKET_IFNAME=^docker0; fi
python train.py
