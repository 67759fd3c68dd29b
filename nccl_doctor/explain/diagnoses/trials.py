"""Two runs in one log, and what was changed between them."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain.case import Candidate, Case, diagnosis, hosts_of
from nccl_doctor.explain.diagnoses.words import later
from nccl_doctor.explain.model import Hit

# What a variable goes round: where a run succeeds with it and not without, this is broken, or is in the way.
_GOES_ROUND = {
    "NCCL_P2P_DISABLE": "gpu.p2p",
    "NCCL_P2P_LEVEL": "gpu.p2p",
    "NCCL_SHM_DISABLE": "sys.shm",
    "NCCL_IB_DISABLE": "ib.qp-connect",
    "NCCL_IB_GID_INDEX": "ib.gid-index",
    "NCCL_IB_HCA": "ib.device-not-found",
    "NCCL_NET_GDR_LEVEL": "ib.gdr",
    "NCCL_SOCKET_IFNAME": "net.wrong-interface",
    "GLOO_SOCKET_IFNAME": "net.wrong-interface",
    "NCCL_NET_PLUGIN": "net.plugin",
    "NCCL_NVLS_ENABLE": "gpu.fabric-manager",
    "NCCL_MNNVL_ENABLE": "gpu.imex",
    "NCCL_CUMEM_ENABLE": "sw.nccl-bug",
    "NCCL_ALGO": "sw.nccl-bug",
    "NCCL_PROTO": "sw.nccl-bug",
}
_SPEAKS = ("nccl-init-start", "channel-net", "channel-p2p", "channel-shm", "network-used", "bootstrap-using")
_CAME_FAR = ("run-ended", "ended-well", "nccl-tests-ok", "busbw-average", "progress", "nccl-init-complete")
_ENDED = _CAME_FAR[:4]


@diagnosis
def other_setting_helps(case: Case) -> Iterable[Candidate]:
    """A run that comes to nothing, then one with another setting of NCCL that works: the setting goes round the cause.

    Only where NCCL spoke before the variable was first set, and again after it from other processes; and where nothing
    failed any more afterwards.
    """
    for name, cause in _GOES_ROUND.items():
        told = case.env.get(name, [])
        first, second = _runs(case, told[0]) if told else ([], [])
        processes = {hit.pid for hit in first if hit.pid}
        if not first or not second or any(hit.pid in processes for hit in second):
            continue
        setting = told[0]
        lasts = [hit for name in _CAME_FAR if (hit := case.last(name)) is not None]
        works = [hit for hit in lasts if later(hit, second[0])]
        ended = [hit for hit in case.hits(*_ENDED) if later(setting, hit)]
        failures = [hit for hit in case.troubles if hit.file == setting.file]
        if ended or any(later(hit, second[0]) for hit in failures):
            continue
        before = [hit for hit in failures if later(setting, hit)]
        if not before and any(later(setting, hit) for hit in case.hits("progress")):
            continue  # it made steps, and nothing says that it failed
        value = setting.groups.get("value", "").strip(" .")
        yield Candidate(
            cause,
            0.7 if works and before else 0.62 if works else 0.54,
            f"the job works with {name}={value} and not without",
            [setting, *told[1:2], *works[:1], *before[:3], first[-1], second[-1]],
            hosts=hosts_of(second),
        )


def _runs(case: Case, setting: Hit) -> tuple[list[Hit], list[Hit]]:
    """NCCL's lines before and after the line in which a variable is set."""
    spoken = [hit for hit in case.hits(*_SPEAKS) if hit.file == setting.file]
    return [hit for hit in spoken if hit.line < setting.line], [hit for hit in spoken if hit.line > setting.line]
