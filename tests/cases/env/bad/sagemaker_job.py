from sagemaker.pytorch import PyTorch

estimator = PyTorch(
    entry_point="train.py",
    instance_count=2,
    instance_type="ml.p4d.24xlarge",
    distribution={
        "mpi": {
            "enabled": True,
            "processes_per_host": 8,
            "custom_mpi_options": "-x NCCL_DEBUG=DEBUG -x NCCL_ALGO=Ring --verbose",
        }
    },
    environment={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1", "FI_PROVIDER": "efa"},
)
estimator.fit()
