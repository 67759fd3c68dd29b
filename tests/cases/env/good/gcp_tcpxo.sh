#!/bin/bash
# Google A3 Mega: the profile prescribes these; the guest configuration checker enforces them.
export NCCL_FASTRAK_CTRL_DEV=eth0
export NCCL_FASTRAK_IFNAME=eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8
export NCCL_SOCKET_IFNAME=eth0
export NCCL_CROSS_NIC=0
export NCCL_ALGO=Ring,Tree
export NCCL_PROTO=Simple
export NCCL_MIN_NCHANNELS=4
export NCCL_P2P_NET_CHUNKSIZE=524288
export NCCL_BUFFSIZE=8388608
export NCCL_NET_GDR_LEVEL=PIX
export NCCL_FASTRAK_NUM_FLOWS=2
export NCCL_TUNER_PLUGIN=libnccl-tuner.so
torchrun --nproc-per-node 8 train.py
