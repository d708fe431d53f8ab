"""Which GPUs instances get: each rule of Dilu on a cluster small enough to follow by hand."""

import pytest

from explsched.errors import PolicyError
from simulation.colocation.dilu import (
    Complementary,
    DiluOriginal,
    Exclusive,
    InflessByLimit,
    InflessByRequest,
)
from simulation.colocation.instance import BestFit, Instance, InstanceShare, SharePlace
from simulation.colocation.placements import share_placement
from tests.simulation.colocation.builders import GIB, cluster, inference, llm, on, training

BOTH = pytest.mark.parametrize("place", [DiluOriginal(), Complementary()])


def gpus(shares: tuple[InstanceShare, ...] | None) -> list[int]:
    assert shares is not None
    return [share.gpu for share in shares]


def memory(shares: tuple[InstanceShare, ...] | None) -> dict[int, int]:
    """GiB on each GPU."""
    assert shares is not None
    return {share.gpu: share.memory_mib // GIB for share in shares}


def test_the_score_is_what_would_be_left() -> None:
    loads = cluster(on(0, inference(request=0.3, gib=10), 0))
    score = BestFit().score(inference(request=0.2, gib=10), loads)
    # 0.6 (1 - 0.5) + 0.4 (1 - 20/40) = 0.5 and 0.6 (1 - 0.2) + 0.4 (1 - 10/40) = 0.78
    assert score[:2] == pytest.approx([0.5, 0.78])


@pytest.mark.parametrize(
    ("there", "asks", "fits"),
    [
        (inference(request=0.7, limit=0.7), inference(request=0.3, limit=0.3), True),  # omega = 1 is allowed
        (inference(request=0.7, limit=0.7), inference(request=0.3001, limit=0.31), False),
        (inference(request=0.1, limit=0.9), inference(request=0.1, limit=0.6), True),  # gamma = 1.5 is allowed
        (inference(request=0.1, limit=0.9), inference(request=0.1, limit=0.6001), False),
        (inference(gib=35), inference(gib=5), True),
        (inference(gib=36), inference(gib=5), False),
    ],
)
def test_requests_limits_and_memory_bound_a_gpu(there: Instance, asks: Instance, *, fits: bool) -> None:
    loads = cluster(on(0, there, 0), nodes=1, gpus=1)
    assert bool(BestFit().feasible(asks, loads)[0]) is fits


def test_ten_tenths_are_one() -> None:
    loads = cluster(*(on(i, inference(request=0.1, limit=0.1, gib=1), 0) for i in range(9)), nodes=1, gpus=1)
    assert gpus(DiluOriginal().choose(inference(request=0.1, limit=0.1, gib=1), loads)) == [0]


@BOTH
def test_affinity_beats_a_better_fit(place: SharePlace) -> None:
    # An earlier web instance shares GPU 0 with a training that also runs on GPU 1; GPU 4 is fuller and fits better.
    train = training(request=0.3, limit=0.5, gib=(20, 20))
    loads = cluster(on(0, train, 0, 1), on(1, inference("web"), 0), on(2, inference("other", 0.7, 0.8, 30), 4))
    assert gpus(place.choose(inference("web"), loads)) == [1]
    assert gpus(place.choose(inference("mail"), loads)) == [4]


@BOTH
def test_affinity_needs_a_training_on_the_same_gpu(place: SharePlace) -> None:
    # The web instance shares GPU 0 with another inference; the training runs elsewhere.
    loads = cluster(
        on(0, training(gib=(30, 30)), 2, 3),
        on(1, inference("web"), 0),
        on(2, inference("other", request=0.5, gib=10), 0),
    )
    assert gpus(place.choose(inference("web"), loads)) == [0]


@BOTH
def test_an_active_gpu_comes_before_a_new_one_and_the_fullest_before_others(place: SharePlace) -> None:
    loads = cluster(on(0, inference("a", request=0.2), 3), on(1, inference("b", request=0.4), 5))
    assert gpus(place.choose(inference("c"), loads)) == [5]
    full = cluster(on(0, inference("a", request=0.9, limit=0.9), 3))
    assert gpus(place.choose(inference("c"), full)) == [0]


@BOTH
def test_ties_go_to_the_lower_index(place: SharePlace) -> None:
    loads = cluster(on(0, inference("a"), 6), on(1, inference("b"), 2))
    assert gpus(place.choose(inference("c"), loads)) == [2]


@BOTH
def test_an_emptied_gpu_is_new_again(place: SharePlace) -> None:
    loads = cluster(on(0, inference("a"), 6))
    loads.remove(0)
    assert gpus(place.choose(inference("c"), loads)) == [0]


@BOTH
def test_what_fits_nowhere_is_refused(place: SharePlace) -> None:
    loads = cluster(*(on(g, inference(request=0.9, limit=0.9, gib=36), g) for g in range(2)), nodes=1, gpus=2)
    assert place.choose(inference(), loads) is None
    assert place.choose(llm(), loads) is None
    assert place.choose(training(), loads) is None
    assert place.choose(training(gib=(30, 30, 30)), cluster(nodes=3, gpus=2)) is None  # three GPUs, two a node


def test_the_original_puts_an_llm_whole_on_an_active_gpu_first() -> None:
    # GPU 0 can take it whole; GPUs 4 and 5 together could, 10 GB each.
    loads = cluster(on(0, inference("a", gib=5), 0), on(1, training(request=0.4, limit=0.6, gib=(30, 25)), 4, 5))
    asks = llm(request=0.5, limit=0.6, gib=20)
    assert gpus(DiluOriginal().choose(asks, loads)) == [0]
    assert gpus(Complementary().choose(asks, loads)) == [5, 4]


def test_a_split_fills_the_fullest_memory_first_in_the_original() -> None:
    train = training(request=0.4, limit=0.6, gib=(25, 35, 30))
    shares = DiluOriginal().choose(llm(request=0.5, limit=0.6, gib=20), cluster(on(0, train, 4, 5, 6)))
    assert shares is not None
    # 35 of 40 are taken on GPU 5, 30 on GPU 6, 25 on GPU 4.
    assert [(s.gpu, s.memory_mib // GIB) for s in shares] == [(5, 5), (6, 10), (4, 5)]
    assert {(s.request_ppb, s.limit_ppb) for s in shares} == {(500_000_000, 500_000_000)}


def test_ours_takes_few_gpus_of_the_node_that_fits_most_tightly() -> None:
    loads = cluster(
        on(0, training("x", gib=(25, 25, 30)), 0, 1, 2),  # 15 + 15 for a need of 24: 6 too much
        on(1, training("y", gib=(30, 25, 35)), 4, 5, 6),  # 15 + 10 for a need of 24: 1 too much
    )
    shares = Complementary().choose(llm(request=0.5, limit=0.6, gib=24), loads)
    assert shares is not None
    assert [(s.gpu, s.memory_mib // GIB) for s in shares] == [(5, 15), (4, 9)]


@BOTH
def test_a_split_llm_is_allowed_its_limit_in_all(place: SharePlace) -> None:
    shares = place.choose(llm(request=0.2, limit=0.9, gib=20), cluster(on(0, training(gib=(30, 30)), 0, 1)))
    assert shares is not None
    assert [s.limit_ppb for s in shares] == [450_000_000, 450_000_000]


@BOTH
def test_gpus_without_room_for_its_request_take_no_part_of_a_split(place: SharePlace) -> None:
    loads = cluster(on(0, training("x", request=0.6, gib=(30, 30)), 0, 1), on(1, training("y", gib=(30, 30)), 4, 5))
    assert sorted(gpus(place.choose(llm(request=0.5, gib=20), loads))) == [4, 5]


@BOTH
def test_an_llm_takes_a_new_gpu_if_active_ones_do_not_do(place: SharePlace) -> None:
    loads = cluster(on(0, training(gib=(30, 30)), 0, 1))
    assert gpus(place.choose(llm(gib=21), loads)) == [2]


@BOTH
def test_a_gpu_that_lacks_room_for_the_limit_only_does_not_pass_for_a_split(place: SharePlace) -> None:
    loads = cluster(on(0, inference("a", request=0.1, limit=1.0, gib=5), 0), nodes=1, gpus=2)
    assert gpus(place.choose(llm(request=0.4, limit=0.6, gib=20), loads)) == [1]


@BOTH
def test_a_training_takes_active_gpus_of_one_node(place: SharePlace) -> None:
    # Two active GPUs on node 1, one on node 0.
    loads = cluster(on(0, inference("a"), 0), on(1, inference("b"), 5), on(2, inference("c", request=0.3), 7))
    assert sorted(gpus(place.choose(training(gib=(30, 25)), loads))) == [5, 7]


def test_without_enough_active_gpus_the_original_goes_to_the_first_node_and_ours_to_the_one_with_most() -> None:
    loads = cluster(on(0, inference("a"), 1), on(1, inference("b"), 5), on(2, inference("c"), 7))
    asks = training(gib=(30, 30, 30))
    assert gpus(DiluOriginal().choose(asks, loads)) == [1, 0, 2]
    assert gpus(Complementary().choose(asks, loads)) == [5, 7, 4]


def test_of_nodes_that_give_as_many_ours_takes_the_one_that_is_alike() -> None:
    loads = cluster(on(0, training("x", request=0.8, limit=0.9), 0, 1), on(1, training("y", request=0.5), 4, 5))
    assert gpus(Complementary().choose(training("z", request=0.45), loads)) == [6, 7]
    assert gpus(Complementary().choose(training("z", request=0.75, limit=0.9), loads)) == [2, 3]


def test_ours_counts_an_idle_node_as_alike() -> None:
    loads = cluster(on(0, training("x", request=0.8, limit=0.9), 0, 1))
    assert gpus(Complementary().choose(training("z", request=0.8, limit=0.9), loads)) == [2, 3]
    assert gpus(Complementary().choose(training("z", request=0.5), loads)) == [4, 5]


def test_only_the_original_asks_every_gpu_to_take_the_largest_memory_of_a_training() -> None:
    loads = cluster(on(0, inference("a", gib=8), 0), on(1, inference("b", gib=8), 1), nodes=1)
    asks = training(gib=(20, 35))
    assert memory(DiluOriginal().choose(asks, loads)) == {2: 20, 3: 35}
    assert memory(Complementary().choose(asks, loads)) == {0: 20, 2: 35}


def test_entries_go_to_the_gpus_that_they_fill_best_and_the_rest_to_new_ones() -> None:
    loads = cluster(on(0, inference("a", gib=5), 0), on(1, inference("b", gib=12), 1), on(2, inference("c", gib=25), 2))
    assert memory(Complementary().choose(training(gib=(25, 40, 35, 25)), loads)) == {4: 40, 5: 35, 6: 25, 7: 25}
    assert memory(Complementary().choose(training(gib=(25, 40, 35)), loads)) == {0: 35, 1: 25, 3: 40}


def test_a_node_with_room_for_more_entries_wins() -> None:
    loads = cluster(on(0, inference("a", gib=12), 0), on(1, inference("b", gib=12), 4), on(2, inference("c", gib=6), 5))
    assert memory(Complementary().choose(training(gib=(25, 30)), loads)) == {4: 25, 5: 30}


@BOTH
def test_closed_nodes_take_nothing(place: SharePlace) -> None:
    loads = cluster(on(0, inference("a"), 0), nodes=1)
    loads.usable[:3] = False
    assert gpus(place.choose(inference(), loads)) == [3]
    assert place.choose(training(), loads) is None


def test_exclusive_shares_nothing() -> None:
    loads = cluster(on(0, inference("a"), 0), on(1, inference("b"), 5))
    assert gpus(Exclusive().choose(inference(), loads)) == [1]
    assert gpus(Exclusive().choose(training(gib=(30, 30, 30, 30)), cluster(on(0, inference("a"), 0)))) == [4, 5, 6, 7]
    assert Exclusive().choose(training(gib=(30,) * 4), loads) is None
    assert Exclusive().choose(llm(gib=50), cluster()) is None


def test_infless_charges_one_fixed_quota() -> None:
    loads = cluster(on(0, inference("a", request=0.5, limit=0.5), 0))
    asks = inference("b", request=0.3, limit=0.6)
    by_limit, by_request = InflessByLimit().choose(asks, loads), InflessByRequest().choose(asks, loads)
    assert by_limit is not None and by_request is not None
    assert [(s.gpu, s.request_ppb, s.limit_ppb) for s in by_limit] == [(1, 600_000_000, 600_000_000)]
    assert [(s.gpu, s.request_ppb, s.limit_ppb) for s in by_request] == [(0, 300_000_000, 300_000_000)]


def test_an_unknown_placement_is_named_with_the_nearest() -> None:
    with pytest.raises(PolicyError, match="unknown placement 'dillu'; did you mean 'dilu'"):
        share_placement("dillu")


def test_ours_rather_leaves_a_little_memory_than_takes_another_gpu() -> None:
    loads = cluster(
        on(0, training("x", gib=(31, 31, 34)), 0, 1, 2),  # 9 + 9 + 6 for a need of 24: nothing left, three GPUs
        on(1, training("y", gib=(26, 28, 40)), 4, 5, 6),  # 14 + 12 for a need of 24: 2 left, two GPUs
    )
    assert gpus(Complementary().choose(llm(request=0.5, limit=0.6, gib=24), loads)) == [4, 5]
    assert gpus(Complementary(split_cost=0.0).choose(llm(request=0.5, limit=0.6, gib=24), loads)) == [0, 1, 2]
