"""`metrics`: the figures of a site's history, from its options to what it prints."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from explsched.errors import ExplschedError
from tests.simulation.cli.test_simulate import call, told


def test_a_sites_history(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_text(
        "JobID|Submit|Start|End|State|AllocTRES\n7|100|110|210|COMPLETED|gres/gpu=4\n8|100|110|160|FAILED|cpu=1\n"
    )
    found = told("metrics", "--from-sacct", path, "--cluster", "1x8")
    assert (found["policy"], found["jobs"], found["avg_jct_s"], found["avg_queue_s"]) == ("history", 1, 110, 10)
    assert (found["gpus"], found["peak_gpus"], found["rejected"]) == (8, 4, 1)
    assert found["gpu_utilisation"] == pytest.approx(4 * 100 / (8 * 110))
    people = call("metrics", "--from-sacct", path)
    assert "on 4 GPUs, the most that were held at once" in people.stdout
    assert "line 3: " in people.stderr
    assert isinstance(call("metrics", "--from-sacct", path, "--strict").exception, ExplschedError)


@pytest.mark.parametrize("is_local", [False, True])
def test_the_use_of_a_month_counts_what_ran_on_into_it(
    is_local: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster that is full all day: job 7 began the day before, with half of the GPUs, job 9 goes on."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        path = tmp_path / "history.txt"
        rows = [
            (7, "2025-12-31", "2026-01-02", 4),
            (8, "2026-01-01", "2026-01-02", 4),
            (9, "2026-01-02", "2026-01-05", 8),
        ]
        lines = ["JobID|Submit|Start|End|State|AllocTRES"]
        for job, start, end, gpus in rows:
            first, last = (
                f"{day}T00:00:00" if is_local else int(datetime.fromisoformat(day).timestamp()) for day in (start, end)
            )
            lines.append(f"{job}|{first}|{first}|{last}|COMPLETED|gres/gpu={gpus}")
        path.write_text("\n".join(lines) + "\n")
        words = ("metrics", "--from-sacct", path, "--cluster", "1x8")
        assert told(*words)["gpu_utilisation"] == pytest.approx(0.9)
        day = told(*words, "--since", "2026-01-01", "--until", "2026-01-03")
        assert (day["gpu_utilisation"], day["held_gpu_h"]) == (1.0, 8 * 48)
        assert (day["jobs"], day["useful_gpu_h"], day["wasted_gpu_h"], day["lost_gpu_h"]) == (3, None, None, None)
        assert told(*words, "--since", "2026-01-01")["held_gpu_h"] == 8 * 96
        wrong = call(*words, "--since", "2026-01-03", "--until", "2026-01-01")
        assert "must be later than --since" in wrong.stderr
        for outside in (
            ("--since", "2026-01-05"),
            ("--until", "2025-12-31"),
            ("--since", "2027-01-01", "--until", "2027-02-01"),
        ):
            error = call(*words, *outside).exception
            assert isinstance(error, ExplschedError)
            assert "its jobs are from 2025-12-31T00:00:00 to 2026-01-05T00:00:00, outside" in str(error)
    finally:
        monkeypatch.undo()
        time.tzset()
