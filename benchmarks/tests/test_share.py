"""The ratios of `benchmarks.share`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.muri_parity import Replay
from benchmarks.share import Row, geometric_means, main


def row(trace: str, durations: str, ours_s: float) -> Row:
    ours = Replay({"avg_jct_s": ours_s, "makespan_s": 10.0, "p99_jct_s": 8.0}, 3.0)
    theirs = Replay({"avg_jct_s": 100.0, "makespan_s": 11.0, "p99_jct_s": 4.0}, 6.0)
    return Row.of(trace, durations, ours, theirs)


def test_ratios_above_one_say_that_ours_is_better() -> None:
    made = row("trace1", "known", 80.0)
    assert (made.avg_jct_ratio, made.makespan_ratio, made.p99_jct_ratio) == (1.25, 1.1, 0.5)
    assert (made.rival, made.cpu_ratio) == ("muri-s", 0.5)


def test_traces_that_were_held_out_have_their_own_mean() -> None:
    rows = [row("trace1", "known", 50.0), row("trace2", "known", 80.0), row("trace2_pr", "known", 100.0)]
    means = geometric_means([*rows, row("trace2", "learnt", 100.0)])
    assert means == pytest.approx(
        {"known, tuned on": 2.0, "known, held out": 1.25**0.5, "learnt, held out": 1.0}, rel=1e-3
    )


@pytest.mark.parametrize(
    ("gpus", "iterations", "why"),
    [
        (65, 10, "job 0 asks for 65 GPUs (accepted: 1 to 64"),
        (1, 0, "rows cannot be used: line 3: iterations: found '0'"),
    ],
)
def test_a_trace_that_cannot_be_replayed_whole_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], gpus: int, iterations: int, why: str
) -> None:
    header = "job_id,num_gpu,submit_time,iterations,iteration_time,resource_time_0,resource_time_1,resource_time_2"
    rows = [f"0,{gpus},0,10,490,446,8,0", f"1,1,0,{iterations},490,446,8,0"]
    (tmp_path / "trace9.csv").write_text("\n".join([header, *rows]))
    done = CliRunner().invoke(main, ["--traces", str(tmp_path), "--only", "trace9", "--json"])
    assert done.exit_code == 1
    assert f"{tmp_path}/trace9.csv under explsched-share: exit status 1" in done.stderr
    assert why in (told := capfd.readouterr().err)
    assert "Traceback" not in told
