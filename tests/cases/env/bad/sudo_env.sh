sudo NCCL_DEBUG=INFO NCCL_SHM_DISABLE=1 python bench.py
env -u FOO NCCL_IB_GDR_LEVEL=2 python bench.py
srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_GDR_LEVEL=SYS env NCCL_MNNVL=0 python bench.py
time NCCL_ALGO=NVLS NCCL_NVLS_ENABLE=0 python bench.py
