import ray

ray.init(runtime_env={"env_vars": {"NCCL_SOCKET_IFNAME": "eth0, eth1", "NCCL_DEBUG": "INFO", "NCCL_MAX_CHANNELS": "8"}})
