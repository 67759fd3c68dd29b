#!/bin/bash
docker run --rm --gpus all --network host \
  -e NCCL_DEBUG=DEBUG -e NCCL_SHM_DISABLE=1 \
  --env NCCL_SOCKET_IFACE=eth0 \
  --env-file train.env \
  train:1 bash -c "export NCCL_TIMEOUT=7200 && torchrun --nproc-per-node 8 train.py"
ssh node2 'NCCL_NET_GDR_DISABLE=1 nohup python train.py &'
