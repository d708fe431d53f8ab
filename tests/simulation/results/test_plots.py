"""Pictures are written, and show single jobs only where there are few."""

from math import nan
from pathlib import Path

import matplotlib
import pytest
from msgspec.structs import replace

from simulation.results import plots
from simulation.results.outcome import Ending, JobRecord
from tests.simulation.results.outcomes import outcome, record, worked_example


def many(jobs: int) -> tuple[JobRecord, ...]:
    return tuple(record(n + 1, n, n + 1, n + 50) for n in range(jobs))


def test_a_png_of_two_policies(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    plots.draw([worked_example("srsf"), worked_example("fifo")], path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 20_000


def test_a_drawing_names_policies_axes_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    path = tmp_path / "a.svg"
    plots.draw([worked_example("srsf"), worked_example("fifo")], path)
    text = path.read_text()
    for words in ("srsf", "fifo", "job completion time (s)", "GPUs held (%)", "time (min)", "waits", "4 GPUs"):
        assert words in text, words


def test_a_pdf(tmp_path: Path) -> None:
    plots.draw([worked_example()], tmp_path / "a.PDF")
    assert (tmp_path / "a.PDF").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("jobs", "charts"), [(0, 0), (1, 1), (60, 1), (61, 0)])
def test_single_jobs_are_shown_for_small_traces_only(
    jobs: int, charts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    plots.draw([outcome(*many(jobs))], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count("first start to end") == charts


def test_preempted_jobs_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    once = replace(record(1, 0, 0, 100), preemptions=3)
    plots.draw([outcome(once)], tmp_path / "a.svg")
    assert "1 GPU, preempted 3x" in (tmp_path / "a.svg").read_text()


def test_unfinished_jobs_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    never = replace(record(2, 0, 0, 100), start_s=nan, held_s=0.0, ending=Ending.UNFINISHED)
    plots.draw([outcome(record(1, 0, 0, 100, 4), never)], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "1 GPU, unfinished" in text
    assert "nan" not in text


def test_a_simulation_that_ended_before_any_of_its_jobs_has_a_picture(tmp_path: Path) -> None:
    going = replace(record(1, 0, 0, 100), ending=Ending.UNFINISHED)
    plots.draw([outcome(going), outcome(going)], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(plots.PlotError, match=r"a\.jpeg: unknown kind of picture '\.jpeg'.*\.png, \.svg, \.pdf"):
        plots.draw([worked_example()], tmp_path / "a.jpeg")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _name: None)
    with pytest.raises(plots.PlotError, match=r"need matplotlib.*explsched\[plots\]"):
        plots.draw([worked_example()], tmp_path / "a.png")
