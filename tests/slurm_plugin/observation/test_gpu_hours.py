"""What steps tell of a training's whole run time."""

from __future__ import annotations

import pytest

from slurm_plugin.observation.gpu_hours import whole_s


@pytest.mark.parametrize(
    ("total_steps", "steps", "told_s"),
    [(100, (10, 50, 20), 20.0), (100, (), None), (100, (0,), None), (None, (10, 50), None), (0, (10,), None)],
)
def test_the_whole_run_time_is_told_by_the_furthest_step(
    total_steps: int | None, steps: tuple[int, ...], told_s: float | None
) -> None:
    assert whole_s(total_steps, steps, 10.0) == told_s
