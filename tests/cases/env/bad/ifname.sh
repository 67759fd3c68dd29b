export NCCL_SOCKET_IFNAME=^docker0
export NCCL_SOCKET_IFNAME=^eth0
export NCCL_SOCKET_IFNAME=^lo
export NCCL_SOCKET_IFNAME="eth0, eth1"
export NCCL_SOCKET_IFNAME==eth0,=eth1
export NCCL_SOCKET_IFNAME=eth1
export NCCL_SOCKET_IFNAME=mlx5_0
export NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME=^lo,docker0
export GLOO_SOCKET_IFNAME=^lo,docker0
export GLOO_SOCKET_IFNAME=eth
export NCCL_IB_HCA=eth0
export NCCL_IB_HCA=mlx5_1
export NCCL_SOCKET_FAMILY=ipv4
srun python train.py
