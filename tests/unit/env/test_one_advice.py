"""``check`` and ``explain`` say of variables what ``env recommend`` says, and nothing of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nccl_doctor.env import recommend
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.recommend_model import Advice, HostNeeds, Line, Purpose
from nccl_doctor.explain import advice
from nccl_doctor.findings.model import EnvAdvice
from nccl_doctor.rules import judge
from tests.unit.explained import explain_text

CASES = sorted((Path(__file__).parents[2] / "cases" / "explain").glob("*.md"))
LOG = (
    "n1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    "n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens5f0\n"
    "n1:7:7 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    "n1:7:7 [0] NCCL INFO init.cc:120 -> 3\n"
)


def _told(text: str) -> list[EnvAdvice]:
    return [item for cause in explain_text(text).causes for item in cause.env]


def test_explain_has_no_advice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = ["\n".join(re.findall(r"```log[^\n]*\n(.*?)```", path.read_text(), re.DOTALL)) for path in CASES[::4]]
    assert sum(bool(_told(text)) for text in (LOG, *logs)) >= 5
    mark = EnvAdvice("MARK", "1", "as recommend says")
    monkeypatch.setattr(recommend, "workarounds", lambda *_: ())
    monkeypatch.setattr(recommend, "removals", lambda *_: (mark,))
    assert _told(LOG) == [mark]
    assert {item.name for text in logs for item in _told(text)} == {"MARK"}


def test_what_is_taken_away_is_so_for_a_reason() -> None:
    items = [Assignment("NCCL_ALGO", "Tree", how=How.LOG), Assignment("GLOO_SOCKET_IFNAME", "^lo", how=How.LOG)]
    reasons = {item.name: item.reason for item in recommend.removals(items, "2.25.1")}
    assert "ends the job" in reasons["NCCL_ALGO"]
    assert "Gloo knows no ^" in reasons["GLOO_SOCKET_IFNAME"]


def test_how_to_record_a_hang_is_what_recommend_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE=2000" in advice._record_again("2.4.0")
    monkeypatch.setattr(advice, "recorder", lambda _: (EnvAdvice("MARK", "1", ""),))
    assert "run again with MARK=1," in advice._record_again("2.4.0")


def test_check_has_no_advice_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_judge import NAMES, Builder

    seen: list[tuple[HostNeeds, ...]] = []

    def answer(hosts: tuple[HostNeeds, ...], *_: object) -> Advice:
        seen.append(hosts)
        line = Line(EnvAdvice("MARK", "1", ""), 1.0, "")
        return Advice(NAMES, Purpose.RUN, (line,), (), (), (), "")

    monkeypatch.setattr(judge, "recommend", answer)
    assert [item.name for item in judge.judge(Builder().bundle()).env] == ["MARK"]
    assert [host.host for host in seen[0]] == list(NAMES)


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"])
def test_both_take_the_same_thing_away_for_the_same_reason(name: str) -> None:
    from nccl_doctor.env.assignments import Assignment, How

    (of_hosts,) = recommend.recommend([HostNeeds("n1", nccl_version="2.21.5", environment={name: "1"})]).lines
    (of_log,) = recommend.removals([Assignment(name, "1", how=How.LOG, host="n1")], "2.21.5")
    assert (of_hosts.advice.name, of_hosts.advice.unset) == (of_log.name, of_log.unset) == (name, True)
    assert of_log.reason in of_hosts.advice.reason
