import torchx.specs as specs


def trainer(image: str, nodes: int = 2) -> specs.AppDef:
    return specs.AppDef(
        name="trainer",
        roles=[
            specs.Role(
                name="worker",
                image=image,
                entrypoint="torchrun",
                num_replicas=nodes,
                env={
                    "NCCL_DEBUG": "INFO",
                    "NCCL_BLOCKING_WAIT": "1",
                    "NCCL_TREE_THRESHOLD": "0",
                },
            )
        ],
    )
