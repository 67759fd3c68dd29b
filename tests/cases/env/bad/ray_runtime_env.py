import ray

RUNTIME = {
    "working_dir": ".",
    "env_vars": {
        "NCCL_SOCKET_IFNAME": "^docker0,veth",
        "NCCL_IB_TIMEOUT": "40",
        "TOKENIZERS_PARALLELISM": "true",
    },
}


def main() -> None:
    ray.init(address="auto", runtime_env=RUNTIME)


if __name__ == "__main__":
    main()
