"""`sexplsched colocate`: input, output, errors and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from explsched.cli import root
from simulation.colocation.events import generate, write_events
from simulation.results import plots
from simulation.traces.trace import TraceError


def run(*arguments: str) -> str:
    done = CliRunner().invoke(root, ["colocate", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_ratios_are_to_the_first_placement() -> None:
    found = json.loads(run("--instances", "60", "--nodes", "50", "--placement", "dilu,exclusive", "--json"))
    assert (found["nodes"], found["gpus_per_node"], found["gpu_memory_gib"]) == (50, 4, 40)
    dilu, exclusive = found["placements"]
    assert (dilu["placement"], dilu["ratio"], exclusive["placement"]) == ("dilu", 1.0, "exclusive")
    assert exclusive["ratio"] == exclusive["max_gpus"] / dilu["max_gpus"] > 1
    assert dilu["started"] == 60 and dilu["refused"] == 0 and dilu["events"] > 60


def test_a_table_for_people() -> None:
    lines = run("--instances", "20", "--nodes", "20", "--placement", "exclusive,dilu-original").splitlines()
    assert [text.split()[0] for text in lines] == ["PLACEMENT", "exclusive", "dilu-original"]
    assert lines[0].split()[1:3] == ["GPUS", "RATIO"]
    assert lines[1].split()[2] == "1.000"
    assert len({len(text) for text in lines}) == 1
    assert len(lines[0]) <= 80, "a terminal"


@pytest.mark.parametrize(("nodes", "is_warned"), [(50, False), (4, True)])
def test_a_full_cluster_is_warned_of(nodes: int, *, is_warned: bool) -> None:
    """There every placement has all GPUs in use, and each RATIO is 1, however much one refuses."""
    done = CliRunner().invoke(root, ["colocate", "--instances", "60", "--nodes", str(nodes)])
    assert ("instances were refused" in done.stderr) == is_warned


def test_a_file_gives_what_its_events_gave(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    made = json.loads(run("--instances", "40", "--seed", "7", "--nodes", "40", "--write-events", str(path), "--json"))
    read = json.loads(run("--events", str(path), "--nodes", "40", "--json"))
    for one, other in zip(made["placements"], read["placements"], strict=True):
        assert {**one, "cpu_s": 0} == {**other, "cpu_s": 0}


def test_lines_left_out_are_reported_and_fatal_if_strict(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_events(path, generate(5, 0).events[:5])
    path.write_text(path.read_text() + "nonsense\n")
    done = CliRunner().invoke(root, ["colocate", "--events", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"{path}: line 6 left out: neither JSON" in done.stderr
    assert "1 lines left out, 5 events read" in done.stderr
    with pytest.raises(TraceError, match=r"1 lines left out, 5 events read \(--strict\)"):
        CliRunner().invoke(root, ["colocate", "--events", str(path), "--strict"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --events FILE or --instances N"),
        (["--events", "f", "--instances", "3"], "give either --events FILE or --instances N"),
        (["--instances", "3", "--placement", "exclusiv"], "did you mean 'exclusive'"),
        (["--instances", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(root, ["colocate", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_gpus_in_use_over_time_are_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "gpus.svg"
    run("--instances", "40", "--nodes", "40", "--placement", "exclusive,dilu", "--plot", str(picture))
    text = picture.read_text()
    assert all(word in text for word in ("GPUs in use", "exclusive", "dilu"))
    done = CliRunner().invoke(root, ["colocate", "--instances", "5", "--plot", str(tmp_path / "gpus.txt")])
    assert done.exit_code == 2
    assert ".svg" in done.output


def test_the_picture_shows_each_count_from_its_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[int], str]] = []
    real = Axes.step

    def step(self: Axes, x: Any, y: Any, **style: Any) -> Any:
        drawn.append((list(x), list(y), str(style["where"])))
        return real(self, x, y, **style)

    monkeypatch.setattr(Axes, "step", step)
    plots.draw_counts({"a": ([0.0, 120.0, 240.0], [1, 3, 2])}, "GPUs in use", tmp_path / "a.png")
    assert drawn == [([0.0, 2.0, 4.0], [1, 3, 2], "post")]
