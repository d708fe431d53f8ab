"""Moves of running instances: by hand, and that no sequence of them breaks a promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.colocation.events import Action, InstanceEvent, generate
from simulation.colocation.instance import GpuLoads, Hosted, Instance, InstanceKind, InstanceShare, ShareBounds
from simulation.colocation.moves import ComplementaryMoves, Move
from simulation.colocation.placements import SHARE_PLACEMENTS
from simulation.colocation.simulator import Colocation, OvercommitError, colocate
from tests.simulation.colocation.builders import GIB, cluster, inference, llm, on, training


def moved(place: ComplementaryMoves, instance: Instance, loads: GpuLoads) -> list[tuple[int, list[int]]]:
    """Keys, and the GPUs they go to."""
    return [(move.key, [share.gpu for share in move.shares]) for move in place.moves(instance, loads)]


def start(time_s: float, key: int, instance: Instance) -> InstanceEvent:
    return InstanceEvent(time_s, Action.START, key, instance)


def test_a_small_instance_leaves_to_give_another_room() -> None:
    # `large` fits on neither GPU; once `small` is beside the other, it fits on GPU 0.
    loads = cluster(
        on(0, inference("small", 0.2, 0.3, 5), 0),
        on(1, inference("a", 0.3, 0.4, 5), 0),
        on(2, inference("b", 0.8, 0.9, 5), 1),
        nodes=1,
        gpus=3,
    )
    large = inference("large", 0.6, 0.7, 5)
    assert moved(ComplementaryMoves(), large, loads) == [(0, [1])]
    assert [hosted.key for hosted in loads.hosted] == [0, 1, 2]  # asking changes nothing
    found = colocate([start(0, 3, large)], ComplementaryMoves(), cluster(nodes=1))
    assert (found.moves, found.max_active_gpus) == (0, 1)


def test_of_several_that_could_leave_the_one_with_the_least_memory_does() -> None:
    loads = cluster(
        on(0, inference("more", 0.2, 0.3, 6), 0),
        on(1, inference("less", 0.2, 0.3, 5), 0),
        on(2, inference("other", 0.7, 0.8, 5), 1),
        nodes=1,
        gpus=3,
    )
    assert moved(ComplementaryMoves(), inference("new", 0.8, 0.9, 5), loads) == [(1, [1])]


def test_small_instances_leave_the_node_on_which_an_llm_is_split() -> None:
    # Both GPUs of node 1 have 15 GiB to spare, GPU 0 too little of its share until the instance there goes to node 2.
    loads = cluster(
        on(0, training(request=0.4, limit=0.6, gib=(25, 25)), 0, 1),
        on(1, inference("small", 0.3, 0.4, 3), 0),
        on(2, training(request=0.7, limit=0.9, gib=(35, 35)), 2, 3),
        nodes=3,
        gpus=2,
    )
    chat = llm(request=0.5, limit=0.6, gib=30)
    assert moved(ComplementaryMoves(), chat, loads) == [(1, [2])]


def test_as_few_as_needed_leave_a_node_for_an_llm_and_at_most_so_many() -> None:
    # GPUs 0 and 1 have 30 GiB for the LLM once neither hosts `a` or `b`; node 1 would have them without three.
    loads = cluster(
        on(0, training(request=0.4, limit=0.6, gib=(25, 25)), 0, 1),
        on(1, inference("a", 0.3, 0.4, 3), 0),
        on(2, inference("b", 0.3, 0.4, 3), 1),
        on(3, training(request=0.4, limit=0.6, gib=(25, 25)), 2, 3),
        on(4, inference("c", 0.3, 0.4, 3), 2),
        on(5, inference("d", 0.25, 0.3, 3), 3),
        on(6, inference("e", 0.25, 0.3, 3), 3),
        on(7, training(request=0.7, limit=0.9, gib=(35, 35)), 4, 5),
        nodes=4,
        gpus=2,
    )
    chat = llm(request=0.5, limit=0.6, gib=30)
    assert moved(ComplementaryMoves(), chat, loads) == [(1, [4]), (2, [5])]
    assert moved(ComplementaryMoves(most_moves=1), chat, loads) == []


def test_an_llm_leaves_the_node_that_another_one_needs() -> None:
    # GPUs 0 and 1 have 30 GiB beside the training, GPUs 2 and 3 have 20 GiB: enough for `less`, not for `more`.
    loads = cluster(
        on(0, training(request=0.4, limit=0.6, gib=(25, 25)), 0, 1),
        on(1, training(request=0.4, limit=0.6, gib=(30, 30)), 2, 3),
        nodes=4,
        gpus=2,
    )
    less, more = llm("less", gib=20), llm("more", gib=30)
    shares = SHARE_PLACEMENTS["dilu-original"].choose(less, loads)
    assert shares is not None
    loads.add(Hosted(2, less, shares))
    assert {each.gpu for each in shares} == {0, 1}
    assert moved(ComplementaryMoves(), more, loads) == [(2, [2, 3])]
    assert moved(ComplementaryMoves(), llm("as much", gib=20), loads) == []
    loads.usable[2:4] = False
    assert moved(ComplementaryMoves(), more, loads) == []
    loads.usable[2:4] = True
    loads.add(on(3, inference(gib=11), 4))
    loads.add(on(4, inference(gib=29), 6))
    assert moved(ComplementaryMoves(), more, loads) == [(3, [6])]  # a GPU that can be emptied comes first


def test_an_llm_that_needs_an_unused_gpu_takes_one_where_another_like_it_can_be_split() -> None:
    # GPU 2 has 15 GiB to spare for a part, GPU 5 none, as its requests are full.
    loads = cluster(
        on(0, training(request=0.8, limit=0.9, gib=(20,)), 5),
        on(1, llm(request=0.5, limit=0.6, gib=25), 2),
        gpus=2,
        nodes=3,
    )
    chat = llm(request=0.5, limit=0.6, gib=25)
    place = ComplementaryMoves()
    for key, gpus in ((2, [3]), (3, [2, 3])):
        shares = place.choose(chat, loads)
        assert shares is not None
        assert [each.gpu for each in shares] == gpus
        loads.add(Hosted(key, chat, shares))


def test_a_gpu_is_emptied_for_a_training_that_opens_others() -> None:
    # The training takes GPUs 4 and 5. GPU 2 hosts one instance, which GPU 0 can take since something ended there.
    loads = cluster(
        on(0, training(request=0.5, limit=0.7, gib=(30, 30)), 0, 1), on(1, inference("web", 0.3, 0.5, 5), 2), nodes=2
    )
    assert moved(ComplementaryMoves(), training("new", gib=(40, 40)), loads) == [(1, [0])]


def two_on_a_gpu() -> GpuLoads:
    """GPU 4 hosts two instances, which GPUs 0 and 1 can take."""
    return cluster(
        on(0, training(request=0.5, limit=0.7, gib=(30, 30)), 0, 1),
        on(1, inference("a", 0.4, 0.5, 5), 4),
        on(2, inference("b", 0.4, 0.5, 6), 4),
    )


def test_a_gpu_is_emptied_by_at_most_so_many_moves() -> None:
    new = training("new", gib=(40, 40))
    assert moved(ComplementaryMoves(most_moves=1), new, two_on_a_gpu()) == []
    assert moved(ComplementaryMoves(most_moves=2), new, two_on_a_gpu()) == [(2, [0]), (1, [1])]


def test_moves_for_room_count_too() -> None:
    # `large` fits on GPU 0 once `small` is on GPU 2, and `medium` on GPU 1.
    loads = cluster(
        on(0, training(request=0.5, limit=0.7, gib=(30, 30)), 0, 1),
        on(1, inference("small", 0.2, 0.75, 3), 0),
        on(2, training("other", request=0.75, limit=0.75, gib=(30,)), 2),
        on(3, inference("large", 0.5, 0.6, 6), 4),
        on(4, inference("medium", 0.4, 0.5, 5), 4),
        on(5, inference("beside", 0.1, 0.2, 4), 1),
        nodes=3,
    )
    new = training("new", gib=(40, 40))
    assert moved(ComplementaryMoves(most_moves=3), new, loads) == [(1, [2]), (3, [0]), (4, [1])]
    assert moved(ComplementaryMoves(most_moves=2), new, loads) == []


def two_gpus() -> GpuLoads:
    """Of GPUs 4, 8 and 9 each hosts one instance; that on GPU 4 fits nowhere else."""
    return cluster(
        on(0, training(request=0.5, limit=0.7, gib=(30, 30)), 0, 1),
        on(1, inference("stays", 0.8, 0.9, 2), 4),
        on(2, inference("a", 0.4, 0.5, 5), 8),
        on(3, inference("b", 0.4, 0.5, 6), 9),
        nodes=4,
    )


def test_as_many_gpus_are_emptied_as_the_start_opens_and_one_that_cannot_be_is_passed_over() -> None:
    assert moved(ComplementaryMoves(), training("new", request=0.9, gib=(40,)), two_gpus()) == [(2, [0])]
    assert moved(ComplementaryMoves(), training("new", request=0.9, gib=(40, 40)), two_gpus()) == [(2, [0]), (3, [1])]


def test_moves_that_only_shift_the_opening_are_not_made() -> None:
    # The training takes GPUs 0 and 1. Emptied, GPU 4 would leave no room for it on GPU 0: it would take 1 and 2.
    loads = cluster(on(0, inference("a", 0.5, 0.6, 6), 0), on(1, inference("b", 0.2, 0.3, 3), 4))
    assert moved(ComplementaryMoves(), training("new", 0.4, 0.5, (10, 10)), loads) == []


def test_no_gpu_is_half_emptied() -> None:
    loads = two_on_a_gpu()
    loads.add(on(3, inference("in the way", 0.4, 0.5, 5), 1))
    assert moved(ComplementaryMoves(), training("new", gib=(40, 40)), loads) == []


def test_an_instance_that_gives_room_to_one_of_an_emptied_gpu_counts_as_a_move() -> None:
    # `web` (GPU 4) fits on GPU 0 once `small` is on GPU 2.
    loads = cluster(
        on(0, training(request=0.5, limit=0.7, gib=(30, 30)), 0, 1),
        on(1, inference("small", 0.2, 0.3, 3), 0),
        on(2, inference("larger", 0.35, 0.5, 4), 1),
        on(3, training("other", request=0.75, limit=0.9, gib=(30,)), 2),
        on(4, inference("web", 0.4, 0.5, 5), 4),
        nodes=3,
    )
    new = training("new", gib=(40, 40))
    assert moved(ComplementaryMoves(), new, loads) == [(1, [2]), (4, [0])]
    assert moved(ComplementaryMoves(most_moves=1), new, loads) == []


@pytest.mark.parametrize(
    "instance", [inference("web", 0.1, 0.2, 1), inference("none fits", 0.1, 0.2, 41), training(gib=(10, 10))]
)
def test_nothing_moves_for_a_start_that_takes_no_unused_gpu(instance: Instance) -> None:
    loads = cluster(on(0, inference(), 0), on(1, inference(), 1), nodes=1, gpus=2)
    assert moved(ComplementaryMoves(), instance, loads) == []


def test_trainings_stay_and_nothing_goes_to_a_node_that_takes_no_instances() -> None:
    loads = cluster(on(0, training(request=0.3, limit=0.4, gib=(10, 10)), 0, 1), on(1, inference(), 4), nodes=3)
    new = training("new", gib=(40, 40, 40, 40))
    assert moved(ComplementaryMoves(), new, loads) == [(1, [0])]
    loads.usable[:4] = False
    assert moved(ComplementaryMoves(), new, loads) == []


class Moving:
    """A placement that moves what it is told to, once, and puts everything on GPU 0."""

    bounds = ShareBounds()

    def __init__(self, *moves: Move) -> None:
        self._moves = moves

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...]:
        return on(0, instance, *range(instance.gpus)).shares

    def moves(self, instance: Instance, loads: GpuLoads) -> tuple[Move, ...]:
        return self._moves if loads.hosted else ()


def share(gpu: int, gib: int) -> InstanceShare:
    return InstanceShare(gpu, 1, 1, gib * GIB)


def told(first: Instance, *shares: InstanceShare) -> Colocation:
    return colocate([start(0, 0, first), start(1, 1, inference(gib=1))], Moving(Move(0, shares)), cluster())


def test_gpus_that_hold_an_instance_twice_are_in_use() -> None:
    found = told(inference(gib=5), share(1, 5))
    assert [use.active_gpus for use in found.use] == [1, 2]  # the new one on GPU 0, the old one on GPU 1
    found = told(inference(gib=5), share(0, 5))
    assert (found.max_active_gpus, found.moves, found.moved_mib, found.behind_moves) == (1, 1, 5 * GIB, 1)
    last = start(2, 2, inference(gib=1))
    gone = InstanceEvent(1, Action.DELETE, 0, inference(gib=5))
    found = colocate([start(0, 0, inference(gib=5)), last, gone], Moving(Move(0, (share(1, 5),))), cluster())
    assert found.max_during_moves == found.max_active_gpus == 2


@pytest.mark.parametrize(
    ("first", "shares", "words"),
    [
        (inference(gib=25), [share(0, 25)], r"GPU 0 of n1: memory \(MiB\) sum up to 51200"),  # there twice for a while
        (inference(request=0.6, limit=0.7), [share(0, 5)], "GPU 0 of n1: requests sum up to 1.2"),
        (inference(request=0.1, limit=0.8), [share(0, 5)], "GPU 0 of n1: limits sum up to 1.6"),
        (llm(gib=30, request=0.3, limit=0.4), [share(3, 15), share(4, 15)], "spread over several nodes|less than"),
        (training(gib=(20, 20)), [share(2, 20), share(3, 20)], "was moved; trainings stay where they are"),
        (inference(gib=5), [share(1, 4)], "requested memory .5120. MiB and got .4096."),
    ],
)
def test_a_move_that_breaks_a_promise_at_any_moment_is_found(
    first: Instance, shares: list[InstanceShare], words: str
) -> None:
    with pytest.raises(OvercommitError, match=words):
        told(first, *shares)


_shares = st.floats(0.01, 1.0).flatmap(lambda request: st.tuples(st.just(request), st.floats(request, 1.0)))
_instances = st.one_of(
    st.builds(lambda s, r, g: inference(s, r[0], r[1], g), st.sampled_from("abc"), _shares, st.integers(1, 20)),
    st.builds(lambda s, r, g: llm(s, r[0], r[1], g), st.sampled_from("abc"), _shares, st.integers(1, 45)),
    st.builds(
        lambda r, g: training("t", r[0], r[1], tuple(g)), _shares, st.lists(st.integers(1, 40), min_size=1, max_size=3)
    ),
)


@settings(max_examples=150)
@given(
    steps=st.lists(st.one_of(_instances, st.integers(0, 30)), max_size=40),
    most_moves=st.integers(1, 4),
)
def test_moves_lose_nothing_exceed_nothing_and_lower_the_gpus_in_use(
    steps: list[Instance | int], most_moves: int
) -> None:
    place, loads = ComplementaryMoves(most_moves=most_moves), cluster(nodes=3, gpus=3)
    for key, step in enumerate(steps):
        if not isinstance(step, Instance):
            if loads.hosted:
                loads.remove(loads.hosted[step % len(loads.hosted)].key)
            continue
        before = {hosted.key: hosted for hosted in loads.hosted}
        shares = place.choose(step, loads)
        unused = [each.gpu for each in shares or () if not loads.instances[each.gpu]]
        moves = place.moves(step, loads)
        assert {hosted.key: hosted for hosted in loads.hosted} == before
        assert len(moves) <= most_moves * len(unused)
        without = int(loads.active.sum()) + len(unused)
        for move in moves:
            old = loads.get(move.key)
            assert old.instance.kind is not InstanceKind.TRAINING
            assert not {each.gpu for each in old.shares} & {each.gpu for each in move.shares}
            assert all(loads.active[each.gpu] for each in move.shares)
            loads.add(Hosted(-1, old.instance, move.shares))  # both are there
            assert (loads.request_ppb <= 10**9).all()
            assert (loads.memory_mib <= loads.capacity_mib).all()
            loads.remove(move.key)
            loads.remove(-1)
            loads.add(Hosted(move.key, old.instance, move.shares))
        assert {hosted.key: hosted.instance for hosted in loads.hosted} == {k: h.instance for k, h in before.items()}
        shares = place.choose(step, loads)
        if shares is not None:
            loads.add(Hosted(key, step, shares))
        if moves:
            assert int(loads.active.sum()) < without


def test_moves_need_fewer_gpus_than_none() -> None:
    events = generate(300, seed=1).events
    still, moving = (colocate(events, SHARE_PLACEMENTS[name], cluster(nodes=100)) for name in ("dilu", "dilu-moves"))
    assert moving.max_active_gpus < still.max_active_gpus
    assert 0 < moving.behind_moves <= moving.moves < 0.4 * moving.started
    assert (moving.started, still.moves) == (still.started, 0)
