#!/bin/bash
NCCL_DEBUG=INFO
NCCL_SOCKET_IFNAME==eth0
NCCL_IB_HCA==mlx5_0
export NCCL_IB_HCA
python train.py
