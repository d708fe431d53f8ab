"""Gangs on nodes that are near each other in the network."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sched_policy.model import GpuRequest, Node, Switch
from sched_policy.place import Consolidate, Indexed, Room, place_near
from sched_policy.snapshot import Nodes
from tests.sched_policy.builders import job, row, running, snapshot

ROOT = Switch("root")


def tree(*leaves: str, gpus: int = 4) -> Nodes:
    """Nodes n1, n2 ... below these leaf switches, which are below one root; "" for a node that has no switch."""
    above = [(Switch(leaf), ROOT) if leaf else () for leaf in leaves]
    return Nodes(Node(f"n{i + 1}", gpus, frozenset({"main"}), switches=path) for i, path in enumerate(above))


def blocks(*names: str) -> Nodes:
    """Blocks of two nodes each, two of which are a larger block: a and b, c and d."""
    large = {"a": "ab", "b": "ab", "c": "cd", "d": "cd"}
    return Nodes(
        Node(f"n{i + 1}", 4, switches=(Switch(name, 2), Switch(large[name], 4), Switch("all blocks")))
        for i, name in enumerate(names)
    )


def chosen(request: GpuRequest, nodes: Nodes, *free: int) -> set[int] | None:
    """The numbers of the nodes, 1 for n1."""
    here = free or tuple(node.gpus for node in nodes)
    found = place_near(Consolidate(), request, Room(np.array(here), np.zeros(len(nodes), dtype=np.int64), nodes))
    return None if found is None else {node + 1 for node, _ in found}


TWO = GpuRequest.on_each(2, 4)


def test_a_gang_is_below_one_switch_although_nodes_by_name_straddle_two() -> None:
    assert chosen(TWO, tree("a", "b", "a", "b")) == {1, 3}
    assert chosen(TWO, tree("a", "b", "a", "b"), 0, 4, 4, 4) == {2, 4}


def test_of_switches_with_enough_room_the_one_with_the_least() -> None:
    assert chosen(TWO, tree("a", "a", "a", "b", "b")) == {4, 5}
    assert chosen(TWO, tree("a", "a", "a", "b", "b"), 4, 0, 4, 4, 4) == {1, 3}


def test_a_gang_too_large_for_a_switch_is_on_as_few_as_possible() -> None:
    three = tree("a", "b", "b", "b", "c", "c")
    assert chosen(GpuRequest.on_each(5, 4), three) == {2, 3, 4, 5, 6}
    assert chosen(GpuRequest.on_each(4, 4), three) == {1, 2, 3, 4}  # the whole of b, and the least that is enough


def test_a_larger_switch_that_is_near_comes_before_the_root() -> None:
    near, far = (Switch("near"), ROOT), (Switch("far"), ROOT)
    paths = [(Switch("a"), *near), (Switch("x"), *far), (Switch("b"), *near), (Switch("y"), *far)]
    nodes = Nodes(Node(f"n{i + 1}", 4, switches=path) for i, path in enumerate(paths))
    assert chosen(TWO, nodes) == {1, 3}


def test_gpus_in_any_number_per_node_are_counted_by_gpu() -> None:
    assert chosen(GpuRequest(6), tree("a", "b", "a", "b"), 4, 1, 2, 4) == {1, 3}
    assert chosen(GpuRequest(6, nodes=3), tree("a", "a", "b", "b", "b")) == {3, 4, 5}


def test_one_node_is_chosen_as_without_a_network() -> None:
    assert chosen(GpuRequest(2), tree("a", "b", "b"), 4, 4, 3) == {3}


def test_nodes_without_a_common_switch_hold_no_gang() -> None:
    """As seen in Slurm: neither islands nor nodes that no switch names are put together."""
    islands = Nodes(Node(f"n{i + 1}", 4, switches=(Switch(leaf),)) for i, leaf in enumerate("abab"))
    assert chosen(TWO, islands, 4, 4, 0, 0) is None
    assert chosen(TWO, tree("a", "b", ""), 4, 0, 4) is None
    assert chosen(GpuRequest(4), tree("a", "b", ""), 0, 0, 4) == {3}


def test_a_gang_that_a_block_could_hold_waits_for_one() -> None:
    """As seen in Slurm 24.11 and 25.11, and with a switch tree not so."""
    four = blocks("a", "b", "a", "b")
    assert chosen(TWO, four, 0, 0, 4, 4) is None
    assert chosen(TWO, tree("a", "b", "a", "b"), 0, 0, 4, 4) == {3, 4}
    assert chosen(GpuRequest.on_each(3, 4), four) is not None
    two_pairs = blocks("a", "a", "b", "b", "c", "c", "d", "d")
    assert chosen(GpuRequest.on_each(4, 4), two_pairs, 0, 4, 4, 4, 0, 4, 4, 4) is None
    assert chosen(GpuRequest.on_each(6, 4), two_pairs, 0, 4, 4, 4, 0, 4, 4, 4) == {2, 3, 4, 6, 7, 8}


def test_a_gang_that_wants_few_switches_waits_for_them() -> None:
    assert chosen(TWO, tree("a", "b", "a", "b"), 0, 0, 4, 4) == {3, 4}
    assert chosen(replace(TWO, most_switches=1), tree("a", "b", "a", "b"), 0, 0, 4, 4) is None
    assert chosen(replace(TWO, most_switches=2), tree("a", "b", "a", "b"), 0, 0, 4, 4) == {3, 4}


def test_a_gang_that_wants_few_switches_gets_them_below_a_higher_one() -> None:
    """Below the nearest switch are three leaf switches with a node each, elsewhere below the root two in one."""
    near, far = (Switch("near"), ROOT), (Switch("far"), ROOT)
    paths = [(Switch(leaf), *(near if leaf in "abc" else far)) for leaf in "abcde"] + [(Switch("e"), *far)]
    nodes = Nodes(Node(f"n{i + 1}", 4, switches=path) for i, path in enumerate(paths))
    three = GpuRequest.on_each(3, 4)
    assert chosen(three, nodes, 4, 4, 4, 0, 4, 4) == {1, 2, 3}
    found = chosen(replace(three, most_switches=2), nodes, 4, 4, 4, 0, 4, 4)
    assert found is not None
    assert {5, 6} < found


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=9), st.data())
def test_what_fits_fits_with_more_room_and_is_what_was_asked_for(leaves: list[str], data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from([tree(*leaves), blocks(*leaves)]))
    free = data.draw(st.lists(st.integers(0, 4), min_size=len(leaves), max_size=len(leaves)))
    requests = st.one_of(
        st.builds(GpuRequest.on_each, st.integers(2, 5), st.integers(1, 4)),
        st.builds(GpuRequest, st.integers(4, 20), st.integers(1, 4)),
    )
    request = data.draw(requests)

    def place(room: list[int]) -> Indexed | None:
        return place_near(Consolidate(), request, Room(np.array(room), np.zeros(len(room), dtype=np.int64), nodes))

    found = place(free)
    if found is None:
        return
    assert sum(gpus for _, gpus in found) == request.total
    assert len(found) >= request.nodes
    assert all(gpus <= free[node] for node, gpus in found)
    assert place([min(4, gpus + 1) for gpus in free]) is not None


def test_a_policy_reserves_near_nodes_and_waits_for_them() -> None:
    """Below a come free in 1000 s, the first two by name sooner."""
    nodes = blocks("a", "b", "a", "b")
    held = [running(i, f"n{i}", 4, time_limit_s=limit_s) for i, limit_s in ((1, 1100), (2, 1200), (3, 2000), (4, 3000))]
    gang = job(9, 8, request=TWO)
    (soon,) = row("fifo").plan(snapshot(gang, *held, on=nodes)).reservations
    assert [share.node for share in soon.placement] == ["n1", "n3"]
    (anywhere,) = row("fifo").plan(snapshot(gang, *held, on=tuple(Node(n.name, 4) for n in nodes))).reservations
    assert [share.node for share in anywhere.placement] == ["n1", "n2"]


def test_a_gang_that_no_switch_could_ever_hold_is_not_planned() -> None:
    nodes = Nodes(Node(f"n{i + 1}", 4, switches=(Switch(leaf),)) for i, leaf in enumerate("ab"))
    plan = row("fifo").plan(snapshot(job(9, 8, request=TWO), running(1, "n1", 4), on=nodes))
    assert plan.starts == plan.reservations == ()
