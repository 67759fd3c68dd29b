#!/bin/bash
cat > run_rank.sh <<'EOF'
#!/bin/bash
export NCCL_P2P_LEVEL=NVLINK
export NCCL_IB_QPS_PER_CONN=4
exec python train.py "$@"
EOF
chmod +x run_rank.sh
sudo tee /etc/nccl.conf >/dev/null <<EOF
NCCL_SOCKET_IFNAME="eth0"
NCCL_IB_HCA=mlx5_0 
EOF
srun ./run_rank.sh
