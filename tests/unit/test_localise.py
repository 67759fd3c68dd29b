"""Who is blamed for bad links: the guilty, all of them, and nobody else."""

from __future__ import annotations

import itertools

import pytest

from nccl_doctor.rules.localise import LEAST_OF_END, blame, plausible


def fleet(hosts: int, bad: set[str]) -> dict[tuple[str, str], bool]:
    names = [f"gpu{number:02d}" for number in range(1, hosts + 1)]
    return {(a, b): a in bad or b in bad for a, b in itertools.permutations(names, 2)}


def named(measured: dict[tuple[str, str], bool], judge=plausible) -> set[str]:  # type: ignore[no-untyped-def]
    return {host for item in judge(measured) for host in item.hosts}


@pytest.mark.parametrize("judge", [blame, plausible])
@pytest.mark.parametrize(("hosts", "count"), [(3, 1), (4, 1), (4, 2), (6, 2), (8, 3), (12, 5)])
def test_the_guilty_and_nobody_else(hosts: int, count: int, judge) -> None:  # type: ignore[no-untyped-def]
    for bad in itertools.islice(itertools.combinations([f"gpu{n:02d}" for n in range(1, hosts + 1)], count), 20):
        assert named(fleet(hosts, set(bad)), judge) == set(bad)


GUILTY = fleet(4, {"gpu02", "gpu03"})
TOUCHED = sorted(pair for pair, bad in GUILTY.items() if bad)


@pytest.mark.parametrize("lucky", [(), *((pair,) for pair in TOUCHED), (("gpu04", "gpu02"), ("gpu04", "gpu03"))])
def test_two_lossy_hosts_of_four_with_links_that_luckily_lost_nothing(lucky: tuple[tuple[str, str], ...]) -> None:
    """Loss is random: some link of the guilty shows none. Of the sound hosts' links two thirds are bad as well."""
    assert named({pair: bad and pair not in lucky for pair, bad in GUILTY.items()}) == {"gpu02", "gpu03"}


def test_what_is_left_has_one_host_in_common() -> None:
    """Seen in the lab: of gpu02's four links with sound hosts only two, in opposite directions, showed loss."""
    bad = {pair for pair in GUILTY if "gpu03" in pair} | {("gpu02", "gpu01"), ("gpu04", "gpu02")}
    assert named({pair: pair in bad for pair in GUILTY}) == {"gpu02", "gpu03"}


@pytest.mark.parametrize("hosts", [3, 4, 6])
def test_one_bad_cable_between_two_hosts_is_neither_ones_fault(hosts: int) -> None:
    measured = {pair: set(pair) == {"gpu01", "gpu02"} for pair in fleet(hosts, set())}
    assert [(item.hosts, item.direction) for item in plausible(measured)] == [(("gpu01", "gpu02"), "pair")]


def test_one_direction_is_told() -> None:
    measured = {pair: pair[1] == "gpu02" for pair in fleet(4, set())}
    assert [(item.hosts, item.direction) for item in plausible(measured)] == [(("gpu02",), "in")]


def test_just_under_the_share_is_a_pair_and_not_a_culprit() -> None:
    assert LEAST_OF_END == 2 / 3
    measured = {pair: pair in {("gpu01", "gpu02"), ("gpu01", "gpu03")} for pair in fleet(5, set())}
    assert [(item.hosts, item.direction) for item in plausible(measured)] == [
        (("gpu01", "gpu02"), "pair"),
        (("gpu01", "gpu03"), "pair"),
    ]


def test_two_hosts_cannot_be_told_apart() -> None:
    assert [item.hosts for item in plausible(fleet(2, {"gpu02"}))] == [("gpu01", "gpu02")]


def test_a_large_fleet_with_many_culprits_takes_no_long_time() -> None:
    names = [f"gpu{number:04d}" for number in range(1000)]
    bad = set(names[::3])
    near = [(a, names[(i + step) % 1000]) for i, a in enumerate(names) for step in (1, 2, 5, -1, -2, -5)]
    assert bad <= named({(a, b): a in bad or b in bad for a, b in near})


@pytest.mark.parametrize("judge", [blame, plausible])
@pytest.mark.parametrize(
    "guilty", [{"gpu01", "gpu02", "gpu03"}, {"gpu02", "gpu03", "gpu04"}, {"gpu01", "gpu03", "gpu04"}]
)
def test_where_no_link_is_good_nobody_is_left_out(guilty: set[str], judge) -> None:  # type: ignore[no-untyped-def]
    """Three of four hosts spoil all links: the fourth may be sound, and any of them may be the fourth."""
    (item,) = judge(fleet(4, guilty))
    assert item.hosts == ("gpu01", "gpu02", "gpu03", "gpu04") and not item.known_end
    assert item.where == "between gpu[01-04]" and len(item.pairs) == 12


def apart(*groups: str) -> dict[tuple[str, str], bool]:
    """Hosts by number; those of different groups do not reach each other."""
    of = {f"gpu{number}": group for group in groups for number in group}
    return {(a, b): of[a] != of[b] for a, b in itertools.permutations(of, 2)}


@pytest.mark.parametrize("judge", [blame, plausible])
@pytest.mark.parametrize(
    ("groups", "hosts", "where"),
    [
        (("12", "34"), 4, "between gpu[1-2] and gpu[3-4]"),
        (("1234", "5678"), 8, "between gpu[1-4] and gpu[5-8]"),
        (("123456", "78"), 2, "to and from gpu[7-8]"),
        (("12345", "67", "8"), 3, "to and from gpu"),
    ],
)
def test_hosts_that_are_cut_off_together_are_told_once(
    groups: tuple[str, ...],
    hosts: int,
    where: str,
    judge,  # type: ignore[no-untyped-def]
) -> None:
    found = judge(apart(*groups))
    assert len({host for item in found for host in item.hosts}) == hosts
    assert all(item.where.startswith(where) for item in found)
    assert len(groups) > 2 or len(found) == 1


@pytest.mark.parametrize("judge", [blame, plausible])
@pytest.mark.parametrize(
    ("groups", "closed", "where"),
    [
        (("12", "34"), "12", "from gpu[3-4] to gpu[1-2]"),
        (("123456", "78"), "78", "to gpu[7-8]"),
        (("123456", "78"), "123456", "from gpu[7-8]"),
    ],
)
def test_a_group_that_is_not_reached_and_reaches_the_others_is_told_once(
    groups: tuple[str, ...],
    closed: str,
    where: str,
    judge,  # type: ignore[no-untyped-def]
) -> None:
    """A firewall that lets out and not in: the links the other way do not join the groups."""
    (item,) = judge({pair: bad and pair[1][3:] in closed for pair, bad in apart(*groups).items()})
    assert item.where == where


def test_a_faulty_host_beside_two_groups_is_told_from_them() -> None:
    measured = {pair: bad or "gpu1" in pair for pair, bad in apart("123", "456").items()}
    found = [(item.hosts, item.direction) for item in blame(measured)]
    assert found == [(("gpu1",), "both"), (("gpu2", "gpu3"), "both")]


def test_of_a_single_link_both_ends_are_told() -> None:
    (item,) = blame({("a", "b"): True, ("b", "a"): False})
    assert (item.where, item.names, item.host) == ("from a to b", "a and b", "")


@pytest.mark.parametrize("judge", [blame, plausible])
def test_one_peer_alone_cuts_nobody_off(judge) -> None:  # type: ignore[no-untyped-def]
    """Where the other hosts did not try, the trouble may as well be that of the one that did."""
    others = dict.fromkeys(itertools.permutations(("gpu1", "gpu2", "gpu3"), 2), False)
    (item,) = judge({**others, ("gpu1", "gpu4"): True, ("gpu4", "gpu1"): True})
    assert (item.where, item.known_end) == ("between gpu1 and gpu4", False)
    others |= {("gpu4", "gpu5"): False, ("gpu5", "gpu4"): False, ("gpu1", "gpu4"): True, ("gpu1", "gpu5"): True}
    (item,) = judge(others)
    assert (item.where, item.known_end) == ("from gpu1 to gpu[4-5]", False)
    (item,) = judge({**others, ("gpu2", "gpu5"): True})
    assert item.where == "to gpu[4-5]"  # nobody tried the way back


def test_a_single_bad_link_back_from_a_culprit_is_its_own() -> None:
    """All that is sent to gpu4 is slow, and one of the ways back: the peer at that one's end is not to blame."""
    measured = {pair: pair[1] == "gpu4" for pair in itertools.permutations(("gpu1", "gpu2", "gpu3", "gpu4"), 2)}
    found = plausible({**measured, ("gpu4", "gpu1"): True})
    assert {item.hosts for item in found} == {("gpu4",)}
