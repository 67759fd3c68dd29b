"""Flight-recorder dumps: every format is read, hostile files are refused, and comparing ranks names the right ones."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.explain import flight_recorder
from nccl_doctor.explain.flight_recorder import Conclusion, Dump, FlightRecorderRefused, Kind, State
from nccl_doctor.explain.flight_recorder.conclusion import folded
from nccl_doctor.explain.flight_recorder.dump import thin
from nccl_doctor.explain.kinds import kind

RECORDED = Path(__file__).parents[1] / "fixtures" / "flight_recorder"


def recorded(scenario: str, suffix: str = "") -> dict[int, Dump]:
    files = sorted((RECORDED / scenario).glob(f"rank_?{suffix}"))
    dumps, refused = flight_recorder.collect((str(file), file.read_bytes()) for file in files)
    assert not refused and len(dumps) == 3
    return dumps


# What torch 2.13 wrote (backend gloo, three ranks; record.py beside the dumps says how).

REAL = {
    "operation": (Kind.OPERATION_MISMATCH, (1,), "all_gather"),
    "dtype": (Kind.DTYPE_MISMATCH, (0,), "all_reduce of Int"),
    "skipped": (Kind.NEVER_CALLED, (2,), "rank 2 never called all_reduce"),
    "only_rank_0": (Kind.EXTRA_CALL, (0,), "only rank 0 called all_reduce"),
    "left_out": (Kind.OPERATION_MISMATCH, (1,), "rank 1 seems to have left out 1 call"),
}


@pytest.mark.parametrize("scenario", sorted(REAL))
def test_real_dumps_name_the_guilty_rank_and_its_line(scenario: str) -> None:
    kind, ranks, words = REAL[scenario]
    (conclusion,) = flight_recorder.compare(recorded(scenario))
    assert (conclusion.kind, conclusion.ranks) == (kind, ranks)
    assert words in conclusion.title
    guilty = [item for item in conclusion.evidence if item.rank in ranks]
    assert guilty and all("/srv/train/train.py:" in item.text and item.source for item in guilty)


def test_equal_real_dumps_give_no_conclusion() -> None:
    assert flight_recorder.compare(recorded("healthy")) == []


def test_the_json_form_gives_the_same_without_the_lines() -> None:
    (from_pickle,) = flight_recorder.compare(recorded("skipped"))
    (from_json,) = flight_recorder.compare(recorded("skipped", ".json"))
    assert (from_json.kind, from_json.title, from_json.ranks) == (
        from_pickle.kind,
        from_pickle.title,
        from_pickle.ranks,
    )
    assert "train.py" not in from_json.evidence[0].text


def test_gloo_retires_failed_works_too_so_their_state_is_unknown() -> None:
    dump = recorded("operation")[0]
    assert {entry.proven_state for entry in dump.entries} == {State.UNKNOWN}


# NCCL's dumps, in the shapes torch writes them; the values are invented.

WORLD = (0, 1, 2, 3)


def entry(number: int, operation: str = "all_reduce", **changed: Any) -> dict[str, Any]:
    base = {
        "frames": [
            {
                "name": operation,
                "filename": "/opt/python/site-packages/torch/distributed/distributed_c10d.py",
                "line": 9,
            },
            {"name": "train_step", "filename": "/srv/train/train.py", "line": 100 + number},
        ],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_795_000_000_000_000_000 + number,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1_795_000_000_000_000_100,
        "time_discovered_completed_ns": 1_795_000_000_000_000_200,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return {**base, **changed}


STUCK: dict[str, Any] = {
    "state": "started",
    "time_discovered_started_ns": 1_795_000_000_000_000_100,
    "time_discovered_completed_ns": None,
    "retired": False,
}


def raw(entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    groups = groups or {"0": WORLD}
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "default_pg", "ranks": str(list(ranks))} for name, ranks in groups.items()
        },
        "comm_lib_version": "2.28.9",
        "pg_status": {
            "0": {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 1}
        },
        "entries": entries,
    }


def dump(entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]] | None = None, rank: int = 0) -> Dump:
    return flight_recorder.read(pickle.dumps(raw(entries, groups), 2), f"nccl_trace_rank_{rank}")


def compare(*ranks: list[dict[str, Any]] | None, groups: dict[str, tuple[int, ...]] | None = None) -> list[Conclusion]:
    dumps = {rank: dump(entries, groups, rank) for rank, entries in enumerate(ranks) if entries is not None}
    return flight_recorder.compare(dumps)


def test_one_rank_that_never_called_is_named_but_slow_or_skipped_stays_open() -> None:
    waits = [entry(1), entry(2, **STUCK)]
    (found,) = compare(waits, waits, [entry(1)], waits)
    assert found.kind is Kind.NEVER_CALLED and found.ranks == (2,) and "ranks 0-1,3 wait" in found.title
    assert found.cause == "" and found.candidates[:2] == ("app.straggler-timeout", "app.collective-mismatch")
    assert found.sequence == 2
    assert "rank 2: nccl:all_reduce collective_seq_id=1" in found.evidence[-1].text
    assert "/srv/train/train.py:101" in found.evidence[-1].text


def test_a_rank_that_went_on_in_another_group_has_passed_the_call() -> None:
    groups = {"0": WORLD, "7": (2, 3)}
    later = entry(1, process_group=("7", "tp"), pg_id=1, record_id=9, time_created_ns=1_795_000_000_000_000_900)
    waits = [entry(1), entry(2, **STUCK)]
    (found,) = compare(waits, waits, [entry(1), later], [*waits, later], groups=groups)
    assert found.ranks == (2,) and found.cause == "app.collective-mismatch" and "went on" in found.title


def test_when_only_few_called_they_are_the_odd_ones() -> None:
    (found,) = compare([entry(1), entry(2, **STUCK)], [entry(1)], [entry(1)], [entry(1)])
    assert found.kind is Kind.EXTRA_CALL and found.ranks == (0,) and found.cause == "app.collective-mismatch"


def test_all_in_the_same_call_is_not_the_programs_fault() -> None:
    waits = [entry(1), entry(2, **STUCK)]
    (found,) = compare(waits, waits, waits, waits)
    assert found.kind is Kind.ALL_WAITING and found.cause == "" and "ib.retry-exceeded" in found.candidates
    assert "nccl-doctor check" in found.next


def test_ranks_that_do_not_finish_what_others_finished_are_named() -> None:
    waits = [entry(1), entry(2, **STUCK)]
    (found,) = compare([entry(1), entry(2)], waits, [entry(1), entry(2)], [entry(1), entry(2)])
    assert found.kind is Kind.PARTLY_DONE and found.ranks == (1,)


def test_a_missing_dump_is_named_and_blamed_when_all_others_wait() -> None:
    waits = [entry(1), entry(2, **STUCK)]
    (found,) = compare(waits, waits, None, waits)
    assert found.kind is Kind.NO_DUMP and found.ranks == (2,) and found.cause == ""
    assert found.candidates[0] == "app.rank-exception"


def test_shape_may_differ_where_the_number_of_elements_agrees() -> None:
    one, other = [entry(1, input_sizes=[[32, 32]])], [entry(1, input_sizes=[[1024]])]
    assert compare(one, other, other, other) == []
    (found,) = compare(one, [entry(1, input_sizes=[[1000]])], one, one)
    assert found.kind is Kind.SIZE_MISMATCH and found.ranks == (1,) and "1000 elements" in found.title


@pytest.mark.parametrize("operation", ["all_to_all", "gather", "scatter"])
def test_operations_that_may_be_uneven_are_not_called_a_mismatch(operation: str) -> None:
    assert compare(*[[entry(1, operation, input_sizes=[[rank + 1]])] for rank in WORLD]) == []


def test_uneven_all_gather_is_fine_while_the_output_agrees() -> None:
    assert compare(*[[entry(1, "all_gather", input_sizes=[[rank + 1]], output_sizes=[[10]])] for rank in WORLD]) == []


def test_two_against_two_blames_nobody_alone() -> None:
    one, other = [entry(1, "broadcast")], [entry(1, "all_reduce")]
    (found,) = compare(one, other, one, other)
    assert found.kind is Kind.OPERATION_MISMATCH and found.ranks == WORLD


def test_groups_entered_in_different_order() -> None:
    groups = {"0": (0, 1), "5": (0, 1)}
    first, second = entry(1, **STUCK), entry(1, **STUCK, process_group=("5", "data parallel"), pg_id=1)
    (found,) = compare([first], [second], groups=groups)
    assert found.kind is Kind.GROUP_ORDER and found.ranks == (0, 1) and found.cause == "app.collective-mismatch"


def test_two_groups_of_one_name_are_kept_apart_by_their_members() -> None:
    stuck, done = entry(1, **STUCK, process_group=("1", "tp")), entry(1, process_group=("1", "tp"))
    dumps = {
        0: dump([done], {"1": (0, 1)}, 0),
        1: dump([done], {"1": (0, 1)}, 1),
        2: dump([stuck], {"1": (2, 3)}, 2),
        3: dump([stuck], {"1": (2, 3)}, 3),
    }
    (found,) = flight_recorder.compare(dumps)
    assert found.kind is Kind.ALL_WAITING and found.title.startswith("ranks 2-3 are in")


def p2p(name: str, **changed: Any) -> dict[str, Any]:
    return entry(0, profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=1, **STUCK, **changed)


def test_a_ring_of_sends_is_a_deadlock() -> None:
    (found,) = compare([p2p("send 0->1")], [p2p("send 1->2")], [p2p("send 2->0")], groups={"0": (0, 1, 2)})
    assert found.kind is Kind.P2P_CYCLE and found.ranks == (0, 1, 2) and found.cause == "app.collective-mismatch"


def test_a_send_without_its_receive_names_the_peer_and_a_pair_does_not() -> None:
    (found,) = compare([p2p("send 0->1")], [entry(1)], groups={"0": (0, 1)})
    assert found.kind is Kind.P2P_UNMATCHED and found.ranks == (1,)
    assert compare([p2p("send 0->1")], [p2p("recv 1<-0")], groups={"0": (0, 1)}) == []


def test_send_names_hold_ranks_of_the_group() -> None:
    groups = {"3": (4, 6)}
    dumps = {
        4: dump([p2p("send 0->1", process_group=("3", ""))], groups, 4),
        6: dump([entry(1, process_group=("3", ""))], groups, 6),
    }
    found = flight_recorder.compare(dumps)
    assert [item.ranks for item in found if item.kind is Kind.P2P_UNMATCHED] == [(6,)]


# Older formats.


def test_the_list_of_torch_2_2() -> None:
    old = {
        "record_id": 3,
        "pg_id": 0,
        "seq_id": 17,
        "profiling_name": "nccl:all_reduce",
        "time_created_us": 1,
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "state": "scheduled",
        "frames": [{"name": "step", "filename": "/srv/train/train.py", "line": 5}],
    }
    found = flight_recorder.read(pickle.dumps([old], 2), "rank0")
    assert found.entries[0].collective_seq_id == 17
    assert (
        found.entries[0].proven_state is State.WAITING
        and str(found.entries[0].caller) == "/srv/train/train.py:5 (step)"
    )


def test_the_dict_of_torch_2_3_with_one_sequence() -> None:
    item = entry(5)
    del item["collective_seq_id"], item["p2p_seq_id"], item["process_group"]
    found = flight_recorder.read(pickle.dumps({"version": "1.4", "pg_config": {}, "entries": [{**item, "seq_id": 5}]}))
    assert found.entries[0].collective_seq_id == 5 and found.entries[0].process_group == ("0", "")


# What is refused.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a dump",
        pickle.dumps({"model": [1, 2]}),
        pickle.dumps([1, 2, 3]),
        pickle.dumps({"entries": [{"record_id": "seven"}]}),
        pickle.dumps({"entries": 5}),
        b'{"entries": [{"record_id": 1]}',
        b'{"entries":' + b"[" * 100_000,
        pickle.dumps(raw([entry(1)]))[:-40],
    ],
)
def test_what_is_no_dump_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(FlightRecorderRefused, match="rank_4"):
        flight_recorder.read(data, "rank_4")


def test_collect_goes_on_after_a_refused_file_and_refuses_a_second_dump_of_a_rank() -> None:
    good = pickle.dumps(raw([entry(1)]))
    files = [("a/nccl_trace_rank_0", good), ("a/rank_1", b"junk"), ("b/rank_0", good), ("notes.txt", good)]
    dumps, refused = flight_recorder.collect(files)
    assert sorted(dumps) == [0] and [error.source for error in refused] == ["a/rank_1", "b/rank_0", "notes.txt"]


def test_a_rank_list_that_is_code_is_not_evaluated() -> None:
    data = raw([entry(1)])
    data["pg_config"]["0"]["ranks"] = "__import__('os').getpid()"
    assert flight_recorder.read(pickle.dumps(data)).groups[0].ranks is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("rank3.json", 3), ("dump_0.pickle", 0), ("trace", None), ("x99999999999", None)],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert flight_recorder.rank_of_file(f"/srv/dumps/{name}") == rank


def test_a_dump_is_recognised_by_its_first_bytes() -> None:
    assert kind((RECORDED / "healthy" / "rank_0").read_bytes()[:4096]) == "dump"
    assert kind((RECORDED / "skipped" / "rank_0.json").read_bytes()[:4096]) == "dump"
    assert kind(json.dumps(raw([entry(1)])).encode()[:4096]) == "dump"
    assert kind(b"rank 0: NCCL WARN record_id") == ""
    assert kind(b'{"level": "error", "record_id": 7, "message": "failed"}\n') == ""


def test_thinning_keeps_the_newest_and_everything_that_waits() -> None:
    long = dump([entry(1, **STUCK), *[entry(number) for number in range(2, 300)]])
    thinned = thin(long)
    assert [item.collective_seq_id for item in thinned.entries] == [1, *range(44, 300)]


def test_ranks_are_folded() -> None:
    assert folded([3]) == "rank 3"
    assert folded([7, 0, 2, 1]) == "ranks 0-2,7"
