"""Co-location over events: metrics by hand, and a watch that lets no placement cheat."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.colocation.events import Action, InstanceEvent, InstanceMix, generate
from simulation.colocation.instance import GpuLoads, Instance, InstanceKind, InstanceShare, ShareBounds
from simulation.colocation.placements import SHARE_PLACEMENTS
from simulation.colocation.simulator import Colocation, OvercommitError, colocate
from tests.sched_policy.hash_seeds import outputs
from tests.simulation.colocation.builders import GIB, cluster, inference, llm, training


def start(time_s: float, key: int, instance: Instance) -> InstanceEvent:
    return InstanceEvent(time_s, Action.START, key, instance)


def delete(event: InstanceEvent, time_s: float) -> InstanceEvent:
    return InstanceEvent(time_s, Action.DELETE, event.key, event.instance)


def run(name: str, *events: InstanceEvent, loads: GpuLoads | None = None) -> Colocation:
    return colocate(events, SHARE_PLACEMENTS[name], loads or cluster())


def test_figures_by_hand() -> None:
    first = start(0, 0, inference(request=0.2, gib=10))
    second = start(10, 1, inference(request=0.3, gib=20))
    events = (first, second, delete(first, 40), delete(second, 50))
    shared, alone = run("dilu", *events), run("exclusive", *events)
    assert [use.active_gpus for use in shared.use] == [1, 1, 1, 0]
    assert [use.active_gpus for use in alone.use] == [1, 2, 1, 0]
    # Over 50 s: 10 s + 10 s with one GPU, 30 s with two.
    assert (alone.max_active_gpus, alone.mean_active_gpus) == (2, pytest.approx(1.6))
    # 10 s at 1 - 0.2, 30 s at 1 - 0.5, 10 s at 1 - 0.3.
    assert shared.mean_sm_fragmentation == pytest.approx((10 * 0.8 + 30 * 0.5 + 10 * 0.7) / 50)
    # 10 s at 1 - 10/40, 30 s at 1 - 30/40, 10 s at 1 - 20/40.
    assert shared.mean_memory_fragmentation == pytest.approx((10 * 0.75 + 30 * 0.25 + 10 * 0.5) / 50)
    assert alone.use[1].sm_fragmentation == pytest.approx((0.8 + 0.7) / 2)


def test_fragmentation_is_averaged_over_the_time_in_which_something_runs() -> None:
    first = start(0, 0, inference(request=0.2))
    found = run("dilu", first, delete(first, 10), start(90, 1, inference(request=0.2)))
    assert found.mean_sm_fragmentation == pytest.approx(0.8)
    assert found.mean_active_gpus == pytest.approx(10 / 90)


def test_events_of_one_moment_make_one_entry() -> None:
    found = run("exclusive", start(5, 0, inference()), start(5, 1, inference()))
    assert [(use.time_s, use.active_gpus) for use in found.use] == [(5, 2)]


def test_a_refused_instance_and_its_delete_change_nothing() -> None:
    first = start(0, 0, inference("a", request=0.9, limit=0.9))
    refused = start(1, 1, training())
    found = run("dilu", first, refused, delete(refused, 2), delete(first, 3), loads=cluster(nodes=1, gpus=1))
    assert (found.started, found.events, found.refused) == (1, 4, (refused,))
    assert (found.refused_of(InstanceKind.TRAINING), found.refused_of(InstanceKind.INFERENCE)) == (1, 0)
    assert [use.active_gpus for use in found.use] == [1, 1, 1, 0]


class Always:
    """A placement that puts everything where it is told, whatever is there."""

    bounds = ShareBounds()

    def __init__(self, *shares: InstanceShare) -> None:
        self.shares = shares

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...]:
        return self.shares


def share(gpu: int, gib: int = 5) -> InstanceShare:
    return InstanceShare(gpu, 1, 1, gib * GIB)


@pytest.mark.parametrize(
    ("instance", "shares", "words"),
    [
        (
            inference(request=0.6, limit=0.6),
            [share(0)],
            r"GPU 0 of n1: requests sum up to 1.2, at most 1 fit.*0 \(web\)",
        ),
        (inference(request=0.1, limit=0.8), [share(0)], "limits sum up to 1.6, at most 1.5 fit"),
        (inference(gib=21), [share(0, 21)], r"memory \(MiB\) sum up to 43008, at most 40960 fit"),
    ],
)
def test_too_much_on_a_gpu_is_found_whatever_is_charged(
    instance: Instance, shares: list[InstanceShare], words: str
) -> None:
    with pytest.raises(OvercommitError, match=words):
        colocate([start(0, 0, instance), start(1, 1, instance)], Always(*shares), cluster())


@pytest.mark.parametrize(
    ("instance", "shares", "words"),
    [
        (inference(gib=6), [share(0)], "requested memory .6144. MiB and got .5120."),
        (training(gib=(5, 5)), [share(0)], "and got .5120. on GPUs .0."),
        (training(gib=(5, 5)), [share(0), share(0)], "and got .5120, 5120. on GPUs .0."),
        (training(gib=(5, 5)), [share(3), share(4)], "spread over several nodes"),
        (llm(gib=10), [share(3), share(4)], "requested memory|spread over several nodes|less than its limit"),
        (llm(gib=10, limit=0.6), [share(0), share(1)], "split and gets less than its limit 0.6"),
    ],
)
def test_a_torn_or_short_changed_instance_is_found(instance: Instance, shares: list[InstanceShare], words: str) -> None:
    with pytest.raises(OvercommitError, match=words):
        colocate([start(0, 0, instance)], Always(*shares), cluster())


def test_closed_nodes_are_watched() -> None:
    loads = cluster()
    loads.usable[0] = False
    with pytest.raises(OvercommitError, match="GPU 0 of n1, which takes no instances"):
        colocate([start(0, 0, inference())], Always(share(0)), loads)


_shares = st.floats(0.01, 1.0).flatmap(lambda request: st.tuples(st.just(request), st.floats(request, 1.0)))
_instances = st.one_of(
    st.builds(lambda s, r, g: inference(s, r[0], r[1], g), st.sampled_from("abc"), _shares, st.integers(1, 45)),
    st.builds(lambda s, r, g: llm(s, r[0], r[1], g), st.sampled_from("abc"), _shares, st.integers(1, 90)),
    st.builds(
        lambda r, g: training("t", r[0], r[1], tuple(g)), _shares, st.lists(st.integers(1, 45), min_size=1, max_size=5)
    ),
)


@settings(max_examples=150)
@given(
    steps=st.lists(st.one_of(_instances, st.integers(0, 30)), max_size=40),
    name=st.sampled_from(sorted(SHARE_PLACEMENTS)),
    gpus=st.integers(1, 4),
)
def test_no_sequence_of_events_breaks_a_promise(steps: list[Instance | int], name: str, gpus: int) -> None:
    loads = cluster(nodes=3, gpus=gpus)
    events: list[InstanceEvent] = []
    alive: list[InstanceEvent] = []
    for time_s, step in enumerate(steps):
        if isinstance(step, Instance):
            alive.append(start(time_s, time_s, step))
            events.append(alive[-1])
        elif alive:
            events.append(delete(alive.pop(step % len(alive)), time_s))
    events += [delete(event, len(steps)) for event in alive]
    found = colocate(events, SHARE_PLACEMENTS[name], loads)  # the watch raises
    assert found.started + len(found.refused) == sum(isinstance(step, Instance) for step in steps)
    for sums in (loads.request_ppb, loads.limit_ppb, loads.memory_mib, loads.instances):
        assert not sums.any()


def test_sharing_needs_clearly_fewer_gpus() -> None:
    events = generate(800, seed=1).events
    most = {name: run(name, *events, loads=cluster(nodes=250)).max_active_gpus for name in SHARE_PLACEMENTS}
    assert most["dilu"] < 0.75 * most["exclusive"]
    assert most["dilu"] < most["infless-l"] < most["exclusive"]


def test_generated_events_have_the_published_distributions() -> None:
    trace = generate(2000, seed=3)
    started = [event for event in trace.events if event.action is Action.START]
    deleted = [event for event in trace.events if event.action is Action.DELETE]
    assert [event.time_s for event in started] == list(range(2000))
    assert [event.time_s for event in trace.events] == sorted(event.time_s for event in trace.events)
    of_kind = {kind: [e.instance for e in started if e.instance.kind is kind] for kind in InstanceKind}
    assert {kind: len(found) for kind, found in of_kind.items()} == {
        InstanceKind.TRAINING: 400,
        InstanceKind.LLM_INFERENCE: 400,
        InstanceKind.INFERENCE: 1200,
    }
    began_s = {event.key: event.time_s for event in started}
    trains = [event for event in deleted if event.instance.kind is InstanceKind.TRAINING]
    assert (len(trains), len(deleted) - len(trains)) == (200, 1200)
    for event in deleted:
        shortest_s, longest_s = (600, 900) if event in trains else (60, 180)
        assert shortest_s <= event.time_s - began_s[event.key] <= longest_s
    for kind, requests, limits, memories, gpus in (
        (InstanceKind.TRAINING, (0.4, 0.8), (0.6, 1.0), {25, 30, 35, 40}, {2, 4}),
        (InstanceKind.LLM_INFERENCE, (0.4, 0.6), (0.6, 0.8), set(range(20, 31)), {1}),
        (InstanceKind.INFERENCE, (0.2, 0.4), (0.4, 0.6), set(range(3, 11)), {1}),
    ):
        for instance in of_kind[kind]:
            assert requests[0] <= instance.request <= requests[1]
            assert limits[0] <= instance.limit <= limits[1]
            assert instance.limit >= instance.request + 0.2 - 2e-4
        assert {mib // GIB for i in of_kind[kind] for mib in i.memory_mib} == memories
        assert {i.gpus for i in of_kind[kind]} == gpus
    by_service: dict[str, set[Instance]] = {}
    for event in started:
        by_service.setdefault(event.instance.service, set()).add(event.instance)
    assert all(len(alike) == 1 for alike in by_service.values())


@pytest.mark.parametrize("instances", [1, 2, 3, 7])
def test_few_instances_are_generated_too(instances: int) -> None:
    starts = [e for e in generate(instances, 0, InstanceMix()).events if e.action is Action.START]
    assert len(starts) == instances


def test_results_depend_on_the_seed_and_on_nothing_else() -> None:
    program = (
        "from simulation.colocation.events import generate\n"
        "from simulation.colocation.simulator import colocate\n"
        "from simulation.colocation.placements import SHARE_PLACEMENTS\n"
        "from simulation.colocation.instance import GpuLoads\n"
        "for name, place in SHARE_PLACEMENTS.items():\n"
        "    loads = GpuLoads.uniform(60, 4, 40960)\n"
        "    colocate(generate(200, 5).events, place, loads)\n"
        "    print(name, loads.hosted)\n"
    )
    assert len(outputs(program)) == 1
    assert generate(200, 5) == generate(200, 5) != generate(200, 6)
