DOC = """
Do not set NCCL_IB_DISABLE=1 or NCCL_TIMEOUT=1800: they do not do what you think.
"""
FORBIDDEN = ("NCCL_P2P_DISABLE", "NCCL_TIMEOUT")


def check(environment):
    return [name for name in FORBIDDEN if environment.get(name)]
