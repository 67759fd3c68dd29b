#!/bin/bash
set -a
NCCL_DEBUG=WARN
NCCL_SOCKET_IFNAME==eth0
set +a
python train.py
