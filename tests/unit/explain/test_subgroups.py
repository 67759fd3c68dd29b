"""Process groups within a job: a rank's number in a group is not its rank, and who is missing is told by both."""

from __future__ import annotations

from nccl_doctor.explain.model import Explanation
from tests.unit.explained import explain_text

STEPS = "".join(f"[rank0]: step {number} loss 2.{number} 310 ms/step\n" for number in range(100, 120))


def _timed_out(rank: int, member: int, sequence: int, group: str, operation: str = "ALLREDUCE") -> str:
    tag = f"[rank{rank}]:[E812 05:04:45.{rank:03d}114830 ProcessGroupNCCL.cpp"
    return (
        f"{tag}:683] [Rank {member}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={operation}, "
        "NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
        f"{tag}:2241] [PG ID 2 PG GUID {group} Rank {member}]  failure detected by watchdog at work sequence id: {sequence} PG status: "
        f"last enqueued work: {sequence}, last completed work: {sequence - 1}\n"
    )


def _accused(got: Explanation) -> set[tuple[int, ...]]:
    return {cause.ranks for cause in got.causes if "did not join" in cause.title}


def test_the_missing_member_of_a_tensor_parallel_group_is_named_by_its_rank() -> None:
    waiting = "".join(_timed_out(rank, rank - 8, 700, "5(tp_group_1)") for rank in range(8, 16) if rank != 13)
    assert _accused(explain_text(STEPS + waiting)) == {(13,)}


def test_who_waits_in_another_group_is_not_the_one_that_all_wait_for() -> None:
    """Rank 3 of two times eight stands still; its replica, 11, waits for it, and each one's shard waits for the two."""
    log = STEPS + _timed_out(11, 1, 964, "8(mesh_dp_replicate)")
    log += "".join(
        _timed_out(rank, rank, 5510, "1(mesh_dp_shard)", "_ALLGATHER_BASE") for rank in range(8) if rank != 3
    )
    log += "".join(
        _timed_out(rank, rank - 8, 5511, "2(mesh_dp_shard)", "_ALLGATHER_BASE") for rank in range(8, 16) if rank != 11
    )
    assert _accused(explain_text(log)) == {(3,)}


def test_members_that_are_not_evenly_spaced_accuse_nobody() -> None:
    ranks = {0: 8, 1: 9, 2: 14, 4: 21, 5: 22}
    log = STEPS + "".join(_timed_out(rank, member, 700, "5(pipeline)") for member, rank in ranks.items())
    assert _accused(explain_text(log)) == set()


def test_neighbours_of_a_pipeline_that_send_and_receive_accuse_no_third_stage() -> None:
    log = STEPS + "".join(
        _timed_out(4 * stage, stage, 31, "7(pipeline)", "SEND" if stage % 2 else "RECV") for stage in (0, 1, 2, 4, 5)
    )
    assert _accused(explain_text(log)) == set()
