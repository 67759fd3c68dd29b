#!/usr/bin/env bash
set -euo pipefail
NODES=(node1 node2 node3)
for rank in "${!NODES[@]}"; do
  ssh "${NODES[$rank]}" "cd /srv/train && NCCL_SOCKET_IFNAME=eth NCCL_SHM_DISABLE=1 torchrun --nnodes=3 --node-rank=$rank train.py" &
done
wait
pdsh -w node[1-3] 'export NCCL_NET_GDR_READ=yes; ./bench.sh'
docker run --rm --gpus all --network host --ipc host -e NCCL_IB_TIMEOUT=23 \
  -e NCCL_COLLNET_ENABLED=1 -e "NCCL_DEBUG=info " registry.local/train:1 ./run.sh
