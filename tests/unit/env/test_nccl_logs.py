"""Lint and explain on what real libraries printed (recorded with tests/tools/ask_nccl.py, without a GPU).

``*-settings``: NCCL_SOCKET_IFNAME==eth0 NCCL_GDRCOPY_ENABLE=true NCCL_SET_THREAD_NAME=(20 nines) NCCL_NVTX_DISABLE=1;
``*-no-interface``: NCCL_SOCKET_IFNAME=eth7 where there is none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.env.examine import examine
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Severity
from tests.unit.explained import explain_text

LOGS = Path(__file__).parents[2] / "fixtures" / "nccl_logs"
RELEASES = sorted({file.name.rsplit("-", 1)[0].removesuffix("-no") for file in LOGS.glob("*.log")})

assert len(RELEASES) == 5

every_release = pytest.mark.parametrize("release", RELEASES)


@every_release
def test_what_a_library_says_was_set_is_read(release: str) -> None:
    result = examine(logs=[str(LOGS / f"{release}-settings.log")], nccl_version=release)
    seen = {(item.name, item.value, item.host) for item in result.assignments}
    assert ("NCCL_SOCKET_IFNAME", "=eth0", "node01") in seen
    refused = [item.assignment.value for item in result.remarks if item.finding.severity is Severity.FAIL]
    # 2.30.7 made the second a typed variable that says nothing; 2.32.3 refuses what is no number at all.
    assert refused == {"2.30.7": [], "2.32.3": ["true"]}.get(release, ["99999999999999999999"])
    assert ("NCCL_GDRCOPY_ENABLE", "0", "node01") in seen or release == "2.32.3"


@every_release
def test_a_list_that_the_log_says_matched_nothing(release: str) -> None:
    (found,) = [
        item.finding
        for item in examine(logs=[str(LOGS / f"{release}-no-interface.log")], nccl_version=release).remarks
        if item.finding.severity is Severity.FAIL
    ]
    assert found.id == "env.bad-nccl-var.ifname-no-match" and found.hosts == ("node01",)


@every_release
def test_explain_takes_the_list_away_and_names_no_placeholder(release: str) -> None:
    got = explain_text((LOGS / f"{release}-no-interface.log").read_text())
    assert got.causes[0].id == "net.wrong-interface" and got.causes[0].hosts == ("node01",)
    assert [advice.shell for advice in got.causes[0].env] == ["unset NCCL_SOCKET_IFNAME"]
    assert "nccl-doctor env recommend --hosts HOSTFILE" in got.next


@every_release
def test_explain_knows_cuda_s_own_error_and_the_device_numbers_of_nobody(release: str) -> None:
    got = explain_text((LOGS / f"{release}-settings.log").read_text())
    assert got.causes[0].id == "gpu.driver" and got.causes[0].hosts == ("node01",)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("epoch 1, loss 2.3\n", ExitCode.NOTHING_CHECKED, "NCCL_DEBUG=INFO"),
        ("NCCL version 2.21.5+cuda12.4\n", ExitCode.INCOMPLETE, "NCCL_DEBUG=INFO"),
        ("n1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n", ExitCode.HEALTHY, ""),
    ],
)
def test_a_log_in_which_nccl_tells_nothing_is_no_pass(tmp_path: Path, text: str, code: ExitCode, said: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(text)
    result = examine(logs=[str(log)])
    assert result.exit_code(strict=False) is code and said in " ".join(problem.why for problem in result.problems)
