"""Planted canaries: no secret survives redaction, and what an engineer needs does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.facts.redaction import (
    HIDDEN,
    is_secret_name,
    redact_argv,
    redact_environment,
    redact_text,
    redact_tree,
    redact_variable,
)
from tests.tools.growth import is_linear

# Built from pieces, so that no scanner takes this file for a leak.
C = "CANARY" + "0123456789abcdefABCDEF"
PEM = f"-----BEGIN {'PRIVATE'} KEY-----\nMIIE{C}\n{C}\n-----END {'PRIVATE'} KEY-----"
CANARIES = [
    f"postgres://user:{C}@db.example:5432/x",
    f"redis://:{C}@cache",
    f"https://{C}@github.example/org/repo.git",
    f"http://proxy-user:{C}@proxy:3128",
    f"Authorization: Bearer {C}",
    f"authorization: basic {C}",
    f"Proxy-Authorization: Digest {C}",
    f"export WANDB_API_KEY={C}",
    f"HF_TOKEN={C}",
    f"--token {C}",
    f"api_tokens: 12|{C}",
    f"--password={C}",
    f"--api-key '{C}'",
    f"password: {C}",
    f'"secret": "{C} with blanks"',
    f"'client_secret': '{C}'",
    f"aws_secret_access_key = {C}",
    f"AWS_SESSION_TOKEN={C}",
    f"AccountKey={C};EndpointSuffix=core",
    f"?sig={C}&se=2026",
    f"https://x/y?access_token={C}&z=1",
    f"passwd={C}",
    f"MYSQL_PWD_SECRET={C}",
    f"my.app.secret-key={C}",
    f"SLURM_JWT_TOKEN={C}",
    PEM,
    f"-----BEGIN OPENSSH {'PRIVATE'} KEY-----\n{C}",
    f"-----BEGIN RSA {'PRIVATE'} KEY-----\\n{C}\\n-----END RSA {'PRIVATE'} KEY-----",
    "AKIA" + "CANARYCANARY1234",
    "gh" + "p_" + C,
    "hf" + "_" + C,
    "s" + "k-proj-" + C,
    "xox" + "b-" + C,
    "nv" + "api-" + C,
    "eyJhbGciOiJ" + C + ".eyJzdWIiOiI" + C + "." + C,
    f"cookie: session={C}",
]


@pytest.mark.parametrize("text", CANARIES)
def test_no_canary_survives(text: str) -> None:
    for line in (text, f"rank 3: {text} (retrying)", f"\x1b[31m{text}", text.upper() if "CANARY" not in text else text):
        hidden = redact_text(line)
        assert "CANARY" not in hidden, hidden
        assert HIDDEN in hidden
        assert redact_text(hidden).count("CANARY") == 0


@pytest.mark.parametrize("text", ["api_token=123456", "X-Auth-Token: 123456", "--hf-token 123456", "token=123456"])
def test_one_token_is_a_secret_even_if_it_is_a_number(text: str) -> None:
    assert redact_text(text) == text.replace("123456", HIDDEN)


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_IB_PKEY=0x8001",
        "NCCL_SOCKET_IFNAME=eth0,eth1",
        "gpu01:1234:1234 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "ssh-ed25519 SHA256:AAAAB3NzaC1yc2EAAAADAQABAAABgQ from /root/.ssh/id_ed25519",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:1970",
        "tokenizer: 32000 tokens per batch, token count 17",
        "consumed tokens: 1,234,567 | #new-token: 8192, #token: 249690, token usage: 0.38, num_tokens=1.2e9",
        '{"total_tokens": 524288} --max-tokens 4096',
        "KeyError: 'image_00931'",
        "http://10.0.0.1:29500/",
        "MASTER_ADDR=gpu01 MASTER_PORT=29500",
        "Permission denied (publickey,password).",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9",
        "PWD=/home/ada",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_names_of_variables() -> None:
    assert all(
        map(
            is_secret_name,
            ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my-password", "hubAuthToken", "SLURM_JWT", "WANDB_API_KEY"),
        )
    )
    assert not any(map(is_secret_name, ("NCCL_IB_PKEY", "PWD", "PATH", "NCCL_DEBUG", "KEYBOARD", "MASTER_PORT")))
    assert redact_variable("HF_TOKEN", "x") == HIDDEN and redact_variable("HF_TOKEN", "") == ""
    assert redact_environment({"B": "1", "A_SECRET": "x"}) == {"A_SECRET": HIDDEN, "B": "1"}


def test_command_lines() -> None:
    argv = [
        "train.py",
        "--lr",
        "0.1",
        "--token",
        C,
        "--wandb-api-key=" + C,
        "--url",
        f"http://u:{C}@h",
        "HF_TOKEN=" + C,
    ]
    hidden = redact_argv(argv)
    assert C not in " ".join(hidden)
    assert hidden[:3] == ["train.py", "--lr", "0.1"] and hidden[3:5] == ["--token", HIDDEN]


def test_trees() -> None:
    tree = {"a": [f"password={C}", {"token": C, "n": 3}], "b": None}
    assert redact_tree(tree) == {"a": [f"password={HIDDEN}", {"token": HIDDEN, "n": 3}], "b": None}


_PIECES = st.sampled_from([*CANARIES, HIDDEN, "token", "=", ": ", "--password ", "'", '"', "://", "@", "\n"])


@given(st.lists(st.one_of(_PIECES, st.text(max_size=4)), max_size=8).map("".join))
def test_redacting_twice_brings_nothing_back(text: str) -> None:
    once = redact_text(text)
    left = iter(once)
    assert all(letter in left for letter in redact_text(once).replace(HIDDEN, "")), once


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a_",
        "a.b-",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "x://",
        "token=",
        "token ",
        "password: '",
        "sk-",
        "bearer ",
        ".",
    ],
)
def test_time_is_linear(piece: str) -> None:
    assert is_linear(redact_text, lambda length: (piece * length)[:length])


def test_what_a_rank_leaves_behind() -> None:
    from types import SimpleNamespace as Plain

    from nccl_doctor.agent.collective.launch import Launch

    text = Plain(text=lambda: f"warning: token={C}", dropped=0)
    rank = Plain(rank=0, process=Plain(pid=1, poll=lambda: 1), where={}, finished=False, killed="", state="R",
                 error=None, stack=f'File "train.py", line 3: login(password="{C}")', output=text)  # fmt: skip
    told = str(Launch._describe(None, rank))  # type: ignore[arg-type]
    assert C not in told and told.count(HIDDEN) == 2


def test_what_two_rules_hide_is_hidden_once() -> None:
    token = "hf_" + "A" * 34
    assert redact_text(f"[HF_TOKEN={token}] HF_TOKEN={token}.rest") == f"[HF_TOKEN={HIDDEN}] HF_TOKEN={HIDDEN}"
