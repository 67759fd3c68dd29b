#!/bin/bash
cat > /etc/nccl.conf <<EOF
# site
NCCL_SOCKET_IFNAME = eth0
export NCCL_DEBUG=WARN
NCCL_IB_HCA="=mlx5_0"
EOF
cat > run.sh <<'EOF'
export NCCL_TIMEOUT=600
python train.py
EOF
python - <<'EOF'
import os
os.environ["NCCL_IB_DISABLE"] = 1
EOF
echo "NCCL_IB_GID_INDEX=3" | sudo tee -a /etc/nccl.conf
