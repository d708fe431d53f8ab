"""The bound below which no placement can be, and published events."""

from pathlib import Path

from click.testing import CliRunner

from benchmarks.colocation import bound, main
from simulation.colocation.events import Action, InstanceEvent, InstanceTrace, generate, write_events
from simulation.colocation.instance import GpuLoads, Instance, InstanceKind, ShareBounds
from simulation.colocation.placements import SHARE_PLACEMENTS
from simulation.colocation.simulator import colocate


def test_no_placement_needs_fewer_gpus_than_the_bound() -> None:
    trace = generate(60, seed=7)
    least = bound(trace, ShareBounds())
    needed = colocate(trace.events, SHARE_PLACEMENTS["dilu"], GpuLoads.uniform(100, 4, 40 * 1024)).max_active_gpus
    assert 1 < least <= needed


def test_the_scarcest_of_requests_limits_and_memory_counts() -> None:
    trace = generate(60, seed=7)
    assert bound(trace, ShareBounds(request=0.01)) > bound(trace, ShareBounds())
    assert bound(trace, ShareBounds(limit=0.01)) > bound(trace, ShareBounds())


def test_entries_of_more_than_half_of_a_gpus_memory_need_a_gpu_each_unless_an_llm_is_split() -> None:
    def least(kind: InstanceKind, memory_mib: int) -> int:
        alike = Instance("service", kind, 0.1, 0.2, (memory_mib,))
        return bound(
            InstanceTrace(tuple(InstanceEvent(0.0, Action.START, key, alike) for key in range(4))), ShareBounds()
        )

    assert least(InstanceKind.TRAINING, 21 * 1024) == 4
    assert least(InstanceKind.TRAINING, 20 * 1024) == 2
    assert least(InstanceKind.LLM_INFERENCE, 21 * 1024) == 3


def published(directory: Path, last_line: str) -> Path:
    for size in ("100", "800", "3200"):
        write_events(directory / f"instances-{size}.txt", generate(3, seed=7).events)
    with (directory / "instances-3200.txt").open("a") as file:
        file.write(last_line)
    return directory


def test_a_line_of_published_events_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--published", str(published(tmp_path, "nothing")), "--instances", "3"])
    assert done.exit_code == 1
    assert "instances-3200.txt: 1 rows cannot be used: line 6: " in done.stderr


def test_published_events_are_measured_beside_generated_ones(tmp_path: Path) -> None:
    options = ["--published", str(published(tmp_path, "\n")), "--instances", "3", "--seeds", "1"]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == [
        f"instances-{size}.txt" for size in ("100", "800", "3200")
    ]
