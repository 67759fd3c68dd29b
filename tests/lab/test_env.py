"""``nccl-doctor env tune`` and ``recommend`` over real hosts: a setting that truly helps, and one that does not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from . import machine
from .lab import Lab

PAIR = ("gpu01", "gpu02")


@contextlib.contextmanager
def fast_link(lab: Lab) -> Iterator[str]:
    """A second, direct link between two hosts, which names do not resolve to."""
    one, two = (lab.host(name).namespace for name in PAIR)
    machine.command(f"ip -netns {one} link add fast0 type veth peer name fast0 netns {two}".split())
    try:
        for number, namespace in enumerate((one, two), start=1):
            machine.command(f"ip -netns {namespace} address add 192.168.77.{number}/24 dev fast0".split())
            machine.command(f"ip -netns {namespace} link set fast0 up".split())
        yield "fast0"
    finally:
        machine.command(f"ip -netns {one} link del fast0".split())


def test_tune_recommends_the_faster_link(lab: Lab) -> None:
    """A gain that no neighbour on this machine could feign; what has no effect is the default against itself."""
    with fast_link(lab) as name, lab.fault("slow-link", PAIR[1], mbit=20):
        words = f"nccl-doctor env tune allreduce -H {','.join(PAIR)} --backend gloo --sizes 256K --rounds 3"
        words += f" --set GLOO_SOCKET_IFNAME={name} --time-budget 0.3 --format json"
        done = lab.run(words.split(), timeout=400)
    assert done.returncode in (0, 4), done.stderr
    found = json.loads(done.stdout)
    (trial,) = found["trials"]
    assert trial["env"] == {"GLOO_SOCKET_IFNAME": name} and trial["change"]["mean"] < -0.5
    assert "eth0" in found["path"]
    assert any(name in note for note in found["notes"]), "that it took another path is told"
    if found["trusted"]:  # where the machine is too busy for the default to agree with itself, nothing is recommended
        assert found["recommended"] == {"GLOO_SOCKET_IFNAME": name}
    else:
        assert found["recommended"] is None


def test_recommend_takes_a_wrong_setting_away_in_every_format(lab: Lab) -> None:
    with lab.fault("wrong-environment", PAIR[1]):
        for form, said in (("shell", "unset NCCL_SOCKET_IFNAME"), ("k8s", "take NCCL_SOCKET_IFNAME away")):
            done = lab.run(["nccl-doctor", "env", "recommend", "-H", ",".join(PAIR), "--format", form], timeout=60)
            assert done.returncode == 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
