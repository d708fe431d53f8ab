"""`simulate` and `compare` from their options to what they print."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from explsched.errors import ExplschedError
from sched_policy.group.interleave import MAX_MEMBERS
from simulation.cli.outputs import PolicyColumn, number, ratio, table
from simulation.results.metrics import figures
from simulation.traces.formats.sacct import COMMAND

ROOT = Path(__file__).parents[3]
_OF_SWEEPS = ("best_reached", "avg_best_s", "avg_best_gpu_h", "avg_regret_area")
_OF_LEARNT = ("predicted_share", "predicted_twice", "predicted_inside")
# No GPU is ever free, no curves, nothing learnt.
_UNKNOWN = ("fragmentation", "gain_per_gpu_h", "avg_job_gain_per_gpu_h", *_OF_SWEEPS, *_OF_LEARNT)
_NAMES = [figure.name for figure in figures()]


def call(*words: object) -> Result:
    return CliRunner().invoke(root, [str(word) for word in words])


def told(*words: object) -> dict[str, Any]:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three jobs for a node of two GPUs: a long one that fills it, and two short ones behind it."""
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,gpus,run_s\n1,0,2,300\n2,10,2,120\n3,20,2,60\n")
    return path


def test_a_simulation_by_hand(trace: Path) -> None:
    found = told("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo", "--interval", 10)
    # FIFO: job 1 from 0 to 300, job 2 to 420, job 3 to 480.
    assert found["policy"] == "fifo"
    assert found["avg_jct_s"] == pytest.approx((300 + 410 + 460) / 3)
    assert (found["jobs"], found["makespan_s"], found["p99_jct_s"]) == (3, 480, 460)
    assert found["gpu_utilisation"] == 1.0
    assert found["events"] > 0
    assert found["cpu_s"] > 0
    assert (found["conventions"], found["cluster"]) == ("slurm", {"nodes": 1, "gpus_per_node": 2})
    assert found["settings"]["interval_s"] == 10
    assert set(_NAMES) <= set(found)


def test_settings_reach_the_simulation(trace: Path) -> None:
    common = ("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "srsf", "--estimates", "exact")
    found = told(*common, "--interval", 100, "--restart", 7, "--checkpoint", 3, "--seed", 5, "--scaling", 0.9)
    assert found["settings"] == {
        "interval_s": 100.0,
        "backfill_interval_s": None,
        "backfill_offset_s": 0.0,
        "main_interval_s": None,
        "main_offset_s": 0.0,
        "estimates": "exact",
        "checkpoint_s": 3.0,
        "restart_s": 7.0,
        "shards": None,
        "shard_rule": "first-fit",
        "scaling": 0.9,
        "seed": 5,
        "until_s": None,
    }
    # Jobs 2 and 3 start at multiples of 100 s; with exact estimates job 3, the shorter one, is first.
    assert found["makespan_s"] == 400 + 120
    assert told(*common[:-2], "--estimates", "noisy:0.5")["settings"]["estimates"] == "noisy:0.5"
    # Job 1 ends at an interval, where job 3 starts. Slurm starts job 2 at 363, soon after that one has ended.
    main = ("--main-interval", 10, "--main-offset", 3)
    assert told(*common, "--interval", 100, *main)["makespan_s"] == 363 + 120
    # Backfill starts job 1 at 3 s, job 3 at 303 s, and job 2 at 363 s.
    backfill = ("--backfill-interval", 10, "--backfill-offset", 3)
    assert told(*common, "--interval", 100, *backfill)["makespan_s"] == 363 + 120


def test_muris_conventions(trace: Path) -> None:
    found = told("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "srtf", "--conventions", "muri")
    # Iterations take 1.5 % longer there. Job 3 is first, then job 2; restart overheads come on top.
    assert found["conventions"] == "muri"
    assert found["useful_gpu_h"] == pytest.approx(2 * 480 * 1.015 / 3600)
    assert found["makespan_s"] >= 480 * 1.015
    assert found["preemptions"] == 2


@pytest.mark.parametrize("conventions", ["slurm", "muri"])
def test_themis_says_what_stands_for_its_solver(trace: Path, conventions: str) -> None:
    common = ("--trace", str(trace), "--cluster", "1x2", "--conventions", conventions)
    found = told("simulate", *common, "--policy", "themis")
    assert found["themis"]["solver"].startswith("none: Newton")
    assert "hash of the job id" in found["themis"]["ties"]
    assert told("compare", *common, "--policies", "srtf,themis")["themis"] == found["themis"]
    assert "themis" not in told("simulate", *common, "--policy", "srtf")


def test_themis_takes_a_solver_where_asked_to(trace: Path) -> None:
    muri = ("--trace", str(trace), "--cluster", "1x2", "--conventions", "muri", "--policy", "themis")
    found = told("simulate", *muri, "--shares", "solver")
    assert found["themis"]["solver"].startswith("cvxpy")
    assert found["settings"]["shares"] == "solver"


def test_a_simulation_can_end_early(trace: Path, tmp_path: Path) -> None:
    words = (
        "simulate",
        "--trace",
        str(trace),
        "--cluster",
        "1x2",
        "--policy",
        "fifo",
        "--interval",
        10,
        "--until",
        320,
    )
    found = told(
        *words, "--plot", tmp_path / "a.png", "--jobs-csv", tmp_path / "jobs.csv", "--cluster-csv", tmp_path / "c.csv"
    )
    header, *rows = ((tmp_path / "c.csv").read_text()).splitlines()
    assert header == "time_s,busy_gpus,idle_node_gpus,running_jobs,pending_jobs,idle_gpus,ended_jobs"
    series = [tuple(map(float, row.split(","))) for row in rows]
    assert all(busy + idle == 2 for _, busy, _, _, _, idle, _ in series)
    assert [row[-1] for row in series] == sorted(row[-1] for row in series)
    assert max(row[-1] for row in series) == 1
    assert (found["jobs"], found["completed"], found["avg_jct_s"], found["makespan_s"]) == (3, 1, 300, None)
    assert (tmp_path / "jobs.csv").read_text().count("unfinished") == 2


def test_options_of_muri(trace: Path) -> None:
    trace.write_text(
        "job_id,submit_s,gpus,run_s,stage_io_s,stage_gpu_s,stage_net_s\n"
        "1,0,2,300,0,300,0\n2,10,2,120,0,120,0\n3,20,2,60,0,60,0\n"
    )
    words = ("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "muri-s", "--conventions", "muri")
    default = told(*words)
    assert default["settings"] == {
        "autopack": False,
        "durations": "known",
        "max_members": 4,
        "shares": "central",
        "ordering": "best",
        "grouping": "matching",
    }
    fewer = told(*words, "--max-members", 2, "--autopack")["settings"]
    assert (fewer["autopack"], fewer["max_members"]) == (True, 2)
    ablated = told(*words, "--grouping", "in-order", "--stage-order", "worst")["settings"]
    assert (ablated["grouping"], ablated["ordering"]) == ("in-order", "worst")
    # Jobs that compute all the time only lose by sharing.
    assert told(*words, "--max-members", 1)["held_gpu_h"] < default["held_gpu_h"]


def test_muris_conventions_load_no_heavy_library(trace: Path) -> None:
    code = (
        "import sys; from explsched.cli import root; root(sys.argv[1:], standalone_mode=False); "
        "print(sorted({'scipy', 'matplotlib', 'rich', 'cvxpy', 'yaml'} & set(sys.modules)))"
    )
    words = [
        "simulate",
        "--trace",
        str(trace),
        "--cluster",
        "1x2",
        "--policy",
        "srsf",
        "--conventions",
        "muri",
        "--json",
    ]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_table_for_people_explains_each_figure(trace: Path) -> None:
    result = call("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo")
    for figure in figures():
        assert re.search(rf"^{figure.name} .*{re.escape(figure.text)}$", result.stdout, re.MULTILINE), figure.name


def test_files_are_written(trace: Path, tmp_path: Path) -> None:
    plot, jobs = tmp_path / "a.png", tmp_path / "jobs.csv"
    told("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo", "--plot", plot, "--jobs-csv", jobs)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(jobs.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (("simulate", "--policy", "fifo", "--trace", "{x}", "--jobs-csv", "{x}"), ("--trace", "--jobs-csv")),
        (("simulate", "--policy", "fifo", "--cluster-csv", "{link}", "--trace", "{x}"), ("--cluster-csv", "--trace")),
        (("simulate", "--policy", "fifo", "--trace", "{x}", "--cluster", "{y}", "--jobs-csv", "{y}"), ("--cluster",)),
        (
            ("simulate", "--policy", "fifo", "--trace", "{x}", "--jobs-csv", "{new}", "--cluster-csv", "{new}"),
            ("--jobs-csv", "--cluster-csv"),
        ),
        (("simulate", "--trace", "{y}", "--history", "{x}", "--jobs-csv", "{hard}"), ("--history", "--jobs-csv")),
        (("metrics", "--from-sacct", "{x}", "--jobs-csv", "{x}"), ("--from-sacct", "--jobs-csv")),
        (("colocate", "--events", "{x}", "--write-events", "{x}"), ("--events", "--write-events")),
    ],
)
def test_no_file_is_lost_to_another_of_the_command(
    words: tuple[str, ...], hints: tuple[str, ...], tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("x", "y", "link", "hard", "new")}
    files["x"].write_text("precious")
    files["y"].write_text("nodes: 1\ngpus_per_node: 2\n")
    files["link"].symlink_to(files["x"])
    files["hard"].hardlink_to(files["x"])
    result = call(*(word.format(**files) for word in words))
    assert result.exit_code == 2
    assert "are the same file" in result.stderr
    assert all(hint in result.stderr for hint in hints)
    assert files["x"].read_text() == "precious"
    assert not files["new"].exists()


def test_a_device_may_be_named_twice(trace: Path) -> None:
    shape = ("--trace", trace, "--cluster", "1x2", "--policy", "fifo")
    assert call("simulate", *shape, "--jobs-csv", "/dev/null", "--cluster-csv", "/dev/null").exit_code == 0


def test_a_pipe_may_be_named_twice(trace: Path) -> None:
    """By a name that leads to one that does not exist, such as pipe:[4711]."""
    words = ["--trace", str(trace), "--cluster", "1x2", "--policy", "fifo"]
    words += ["--jobs-csv", "/dev/stdout", "--cluster-csv", "/dev/stdout"]
    command = [sys.executable, "-m", "explsched.cli", "simulate", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "job_id" in done.stdout


@pytest.mark.parametrize(("name", "why"), [("loop", "Too many levels of symbolic links"), (300 * "x", "name too long")])
def test_what_is_wrong_with_a_path_is_told_by_who_opens_it(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    error = call("simulate", "--policy", "fifo", "--cluster", "1x2", "--trace", tmp_path / name).exception
    assert isinstance(error, ExplschedError)
    assert why in str(error)


def test_policies_side_by_side(trace: Path, tmp_path: Path) -> None:
    words = ("compare", "--trace", str(trace), "--cluster", "1x2", "--policies", "fifo,srsf", "--estimates", "exact")
    found = told(*words, "--interval", 10, "--plot", tmp_path / "a.svg", "-j", 2)
    fifo, srsf = found["policies"]
    assert (fifo["policy"], srsf["policy"]) == ("fifo", "srsf")
    assert fifo["avg_jct_s"] == pytest.approx((300 + 410 + 460) / 3)
    assert srsf["ratios"]["avg_jct_s"] == pytest.approx(srsf["avg_jct_s"] / fifo["avg_jct_s"])
    assert set(fifo["ratios"].values()) <= {1.0, None}
    assert found["cluster"] == {"nodes": 1, "gpus_per_node": 2}
    assert (tmp_path / "a.svg").exists()


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two trainings of 100 s on a GPU: the first goes from 1 to 0.5, the second to 0.1 in its last report."""
    path = tmp_path / "sweep.csv"
    path.write_text(
        "job_id,submit_s,gpus,run_s,sweep,curve\n"
        "1,0,1,100,a,0:0:1 1:50:0.6 2:100:0.5\n2,0,1,100,a,0:0:1 1:50:0.3 2:100:0.1\n"
    )
    return path


def test_a_comparison_tells_how_soon_sweeps_came_to_their_best(sweep: Path) -> None:
    common = ("compare", "--trace", sweep, "--cluster", "1x1", "--interval", 10)
    (fifo,) = told(*common, "--policies", "fifo")["policies"]
    # The second ends at 200 s with the best value. Until then: regret 1 for no time, then what is left of 0.9.
    assert (fifo["best_reached"], fifo["avg_best_s"]) == (1.0, 200.0)
    assert fifo["avg_best_gpu_h"] == pytest.approx(200 / 3600)
    regret = (50 * 0.9 + 50 * 0.5 + 50 * 0.4 + 50 * 0.2) / 0.9 / 200
    assert fifo["avg_regret_area"] == pytest.approx(regret, abs=0.06)  # it is looked at every 10 s
    table = call(*common, "--policies", "fifo,slurm").output
    assert all(name in table for name in _OF_SWEEPS)


def test_a_sweep_has_its_best_when_that_training_reports_not_before(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    rows = [*(f"{n},0,1,7200,s,1:3600:0.5 2:7200:0.4" for n in range(1, 4)), "4,0,1,7200,s,1:3600:0.1 2:7200:0.3"]
    path.write_text("\n".join(("job_id,submit_s,gpus,run_s,sweep,curve", *rows)) + "\n")
    fifo, ours = told("compare", "--trace", path, "--cluster", "1x1", "--policies", "fifo,explsched")["policies"]
    assert (fifo["avg_best_s"], fifo["avg_best_gpu_h"]) == (3 * 7200 + 3600, 7.0)
    assert fifo["avg_regret_area"] == pytest.approx((2 + 5 * 0.75) / 8)  # 0.5 is the median first report
    assert ours["avg_best_s"] >= 4 * 3600  # nothing tells it beforehand that the last is the best


def test_a_replay_that_ends_early_tells_only_of_sweeps_that_were_submitted(sweep: Path) -> None:
    late = "".join(f"{3 + i},{1000 + i},1,100,{name},0:0:9 1:100:0.1\n" for i, name in enumerate("abc"))
    sweep.write_text(sweep.read_text() + late)
    common = ("compare", "--trace", sweep, "--cluster", "1x1", "--interval", 10, "--policies", "fifo")
    (early,) = told(*common, "--until", 500)["policies"]
    assert early["best_reached"] == 1.0
    # Also of the first sweep only the two trainings count that were submitted by then.
    assert early["avg_regret_area"] == pytest.approx((50 * 0.9 + 50 * 0.5 + 50 * 0.4 + 50 * 0.2) / 0.9 / 200, abs=0.06)
    assert told(*common, "--until", 1e6)["policies"][0]["best_reached"] == 1.0


def test_sweep_strategies_and_objectives_are_compared_in_one_table(tmp_path: Path) -> None:
    path, steps = tmp_path / "sweep.csv", range(28)
    rows = (
        f"{n},0,1,2700,a,{' '.join(f'{step}:{100 * step}:{1 - n * step / 200}' for step in steps)}" for n in range(1, 7)
    )
    path.write_text("\n".join(("job_id,submit_s,gpus,run_s,sweep,curve", *rows)) + "\n")
    names = ("explsched", "explsched:asha", "explsched:median-stop", "explsched:total")
    found = told("compare", "--trace", path, "--cluster", "1x1", "--policies", ",".join(names))["policies"]
    assert tuple(one["policy"] for one in found) == names
    best_s = {one["policy"]: one["avg_best_s"] for one in found}
    assert len(set(best_s.values())) > 1
    alone = told("simulate", "--trace", path, "--cluster", "1x1", "--policy", names[1])
    assert (alone["policy"], alone["avg_best_s"]) == (names[1], best_s[names[1]])


def test_a_sweep_that_is_cut_off_has_not_reached_its_best(sweep: Path) -> None:
    found = told("simulate", "--trace", sweep, "--cluster", "1x1", "--policy", "fifo", "--until", 120)
    assert (found["best_reached"], found["avg_best_s"], found["avg_best_gpu_h"]) == (0.0, None, None)


def test_how_well_run_times_were_learnt_is_told(tmp_path: Path) -> None:
    """The later jobs are as long as the earlier ones, which have ended by then."""
    path = tmp_path / "alike.csv"
    path.write_text("job_id,submit_s,gpus,run_s\n" + "".join(f"{n},{500 * n},1,100\n" for n in range(1, 9)))
    words = ("--trace", path, "--cluster", "1x1", "--estimates", "learnt")
    found = told("simulate", *words, "--policy", "srsf")
    assert [found[name] for name in _OF_LEARNT] == [7 / 8, 1.0, 1.0]
    assert "predicted_share" in call("simulate", *words, "--policy", "srsf").stdout
    compared = call("compare", *words, "--policies", "fifo,srsf", "-j", 1).stdout
    assert re.search(r"^predicted_inside +1 +1 ", compared, re.MULTILINE)


def test_a_history_tells_nothing_of_the_jobs_that_are_replayed(tmp_path: Path) -> None:
    header, path, history = "job_id,submit_s,gpus,run_s,user\n", tmp_path / "now.csv", tmp_path / "before.csv"
    ours = "".join(f"{n},{n},1,{100 * n},ada\n" for n in range(11, 15))
    path.write_text(header + ours)
    words = ("simulate", "--trace", path, "--cluster", "1x1", "--policy", "srsf", "--estimates", "learnt")
    itself = call(*words, "--history", path)
    assert (itself.exit_code, itself.stdout) == (2, "")
    assert "is the trace itself" in itself.stderr
    history.write_text(header + "".join(f"{n},{n},1,{100 * n},ada\n" for n in range(1, 11)))
    before = told(*words, "--history", history)
    assert before["history"] == str(history)
    history.write_text(history.read_text() + ours)
    told_twice = call(*words, "--history", history).stderr
    assert f"warning: {history}: 4 jobs left out that the trace has as well" in told_twice
    after = told(*words, "--history", history)
    assert [after[name] for name in ("avg_jct_s", *_OF_LEARNT)] == [before[name] for name in ("avg_jct_s", *_OF_LEARNT)]


def test_a_history_tells_nothing_of_jobs_that_end_after_the_trace_began(tmp_path: Path) -> None:
    """Without JobIDRaw, tasks of arrays get other numbers in each file: those of the trace show by their ends."""
    path, history = tmp_path / "january.txt", tmp_path / "year.txt"
    row = "{n}|ada|{at}|{at}|{end}|COMPLETED|gres/gpu=1\n"
    header = "JobID|User|Submit|Start|End|State|AllocTRES\n"
    before = "".join(row.format(n=n, at=n, end=n + 100) for n in range(10))
    tasks = "".join(row.format(n=f"50_{n}", at=2000 + n, end=2060 + n) for n in range(4))
    after = "".join(row.format(n=900 + n, at=9000, end=9060) for n in range(8))
    path.write_text(header + tasks)
    words = ("simulate", "--trace", path, "--cluster", "1x1", "--policy", "srsf", "--estimates", "learnt")
    history.write_text(header + before)
    alone = told(*words, "--history", history)
    history.write_text(header + before + tasks + after)
    result = call(*words, "--history", history)
    assert result.stderr.splitlines()[0] == (
        f"warning: {history}: 12 jobs left out that ended after the trace began (1970-01-01)"
    )
    year = told(*words, "--history", history)
    assert [year[name] for name in _OF_LEARNT] == [alone[name] for name in _OF_LEARNT]


def test_a_comparison_for_people(trace: Path) -> None:
    result = call("compare", "--trace", str(trace), "--cluster", "1x2", "--policies", "fifo,srsf", "-j", 1)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["fifo", "srsf"]
    assert [row.split()[0] for row in rows] == [*(n for n in _NAMES if n not in _UNKNOWN), "events", "cpu_s"]
    assert re.search(r"^jobs +3 +3 +\(1\.00x\)$", result.stdout, re.MULTILINE)


def test_a_policy_that_cannot_go_on_leaves_the_others_their_figures(trace: Path, tmp_path: Path) -> None:
    config, picture = tmp_path / "slices.yaml", tmp_path / "jobs.png"
    config.write_text("utility:\n  quantum_s: 10\n")
    trace.write_text("job_id,submit_s,gpus,run_s\n1,0,1,50\n2,5,1,50\n")
    slow = ("compare", "--trace", trace, "--cluster", "1x1", "--interval", 10, "--restart", 60, "--config", config)
    mixed = call(*slow, "--policies", "fair,fifo,srsf", "--plot", picture)
    assert (mixed.exit_code, mixed.stdout.splitlines()[0].split()) == (1, ["fifo", "srsf"])
    assert "fair: policy 'fair' preempts all jobs" in mixed.stderr
    assert "--restart" in mixed.stderr
    assert picture.exists()
    found = json.loads(call(*slow, "--policies", "fifo,fair", "--json").stdout)
    assert [one["policy"] for one in found["policies"]] == ["fifo"]
    assert [one["policy"] for one in found["failed"]] == ["fair"]
    nothing = call(*slow, "--policies", "fair")
    assert (nothing.exit_code, nothing.stdout) == (1, "")


def test_jct_of_a_policy_that_completes_fewer_jobs_is_warned_of(trace: Path) -> None:
    """Two jobs that share a GPU run half as fast, and reach their time limits."""
    trace.write_text("job_id,submit_s,gpus,run_s,time_limit_s\n1,0,1,300,400\n2,0,1,300,400\n")
    words = ("compare", "--trace", str(trace), "--cluster", "1x1", "-j", 1)
    assert "completed" not in call(*words, "--policies", "fifo,srsf").stderr
    warning = "fewer jobs completed their work (sjf-ffs 0; fifo 2), which shortens JCTs"
    assert f"warning: {warning}\n" in call(*words, "--policies", "fifo,sjf-ffs").stderr
    asked = call(*words, "--policies", "fifo,sjf-ffs", "--json")
    assert f"warning: {warning}\n" in asked.stderr
    assert warning in json.loads(asked.stdout)["warnings"]
    assert f"warning: {warning}\n" in call(*words, "--policies", "sjf-ffs,fifo").stderr


def test_jobs_that_reach_their_time_limits_for_sharing_are_warned_of(trace: Path) -> None:
    """The third is too long for its own limit, under any policy."""
    trace.write_text("job_id,submit_s,gpus,run_s,time_limit_s\n1,0,1,300,400\n2,0,1,300,400\n3,900,1,300,200\n")
    words = ("simulate", "--trace", trace, "--cluster", "1x1", "--policy")
    warning = "2 jobs reached their time limits and would not have alone, which shortens JCTs"
    assert f"warning: {warning}\n" in call(*words, "sjf-ffs").stderr
    assert warning in told(*words, "sjf-ffs")["warnings"]
    assert call(*words, "fifo").stderr == ""


def test_a_table_goes_on_below_where_it_is_too_wide() -> None:
    columns = [PolicyColumn(policy, {"jobs": 1.0, "avg_jct_s": value}) for policy, value in (("a", 2.0), ("b", 5.0))]
    assert table(columns, 100) == [
        "           a           b",
        "jobs       1  1  (1.00x)",
        "avg_jct_s  2  5  (2.50x)",
    ]
    first_words = [(line.split() or [""])[0] for line in table(columns, 15)]
    assert first_words == ["a", "jobs", "avg_jct_s", "", "b", "jobs", "avg_jct_s"]


def test_ratios_need_a_first_value_above_zero() -> None:
    assert ratio(6, 4) == 1.5
    assert [ratio(1, 0), ratio(None, 1), ratio(1, None), ratio(-1, 2), ratio(1, -2)] == [None] * 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (3, "3"), (1234567, "1234567"), (26045465.5, "26045466"), (0.123456, "0.1235"), (0.0, "0")],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert number(value) == text


def test_rows_left_out_are_told_on_stderr(trace: Path) -> None:
    with trace.open("a") as more:
        more.writelines(f"{n},30,{gpus},60\n" for n, gpus in ((4, 9), (5, "x"), (6, 0), (7, 3)))
    result = call("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo", "--json")
    assert "4 rows left out" in result.stderr
    assert re.search(r"line 5: .*job 4 asks for 9", result.stderr)
    assert "line 6: gpus: found 'x'" in result.stderr
    assert "and 1 more" in result.stderr
    assert json.loads(result.stdout)["rejected"] == 4
    none = call("simulate", "--trace", str(trace), "--cluster", "1x1", "--policy", "fifo", "--json")
    assert re.search(r"7 rows cannot be used: line 2: .*job 1 asks for 2", str(none.exception))
    strict = call("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo", "--strict")
    assert isinstance(strict.exception, ExplschedError)
    assert re.search(r"4 rows cannot be used: line 5", str(strict.exception))


def test_data_that_the_trace_lacks_are_warned_of(trace: Path) -> None:
    words = ("--trace", str(trace), "--cluster", "1x2")
    result = call("compare", *words, "--policies", "srtf,explsched", "-j", 1, "--json")
    found = json.loads(result.stdout)["warnings"]
    assert [warning.split(":")[0] for warning in found] == ["srtf", "explsched", "explsched"]
    assert result.stderr.splitlines() == [f"warning: {warning}" for warning in found]
    exact = call("simulate", *words, "--policy", "srtf", "--estimates", "exact", "--json")
    assert json.loads(exact.stdout)["warnings"] == []
    assert exact.stderr == ""


def test_queues_that_are_replayed_as_one_are_warned_of(tmp_path: Path) -> None:
    trace = tmp_path / "queues.csv"
    trace.write_text("job_id,submit_s,gpus,run_s,time_limit_s,queue\n1,0,1,60,60,a\n2,0,1,60,60,b\n")
    told = call("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo")
    assert told.stderr == "warning: 2 queues are replayed as one\n"


def test_types_of_gpus_that_are_replayed_as_one_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    header = "JobID|Submit|Start|End|State|AllocTRES|ReqTRES\n"
    row = "{n}|0|0|60|COMPLETED|gres/gpu:{name}=8,gres/gpu=8|gres/gpu=8\n"
    path.write_text(header + row.format(n=1, name="h100") + row.format(n=2, name="a100"))
    words = ("--trace", path, "--cluster", "2x8", "--policy", "fifo")
    warning = "2 types of GPU (a100, h100) are replayed as one"
    assert f"warning: {warning}\n" in call("simulate", *words).stderr
    assert warning in told("simulate", *words)["warnings"]
    path.write_text(header + row.format(n=1, name="h100") + "2|0|0|60|COMPLETED|gres/gpu=8|gres/gpu=8\n")
    assert "types of GPU" not in call("simulate", *words).stderr


def test_policies_get_the_options_of_a_sites_configuration(tmp_path: Path) -> None:
    trace, config = tmp_path / "two.csv", tmp_path / "explsched.yaml"
    trace.write_text("job_id,submit_s,gpus,run_s,time_limit_s\n1,0,1,590,600\n2,10,1,5,10\n")
    config.write_text("utility: {quantum_s: 1}\n")
    words = ("simulate", "--trace", str(trace), "--cluster", "1x1", "--policy", "srtf", "--json")
    shown = [json.loads(call(*words, "--interval", "1", *more).stdout) for more in ((), ("--config", str(config)))]
    assert [one["preemptions"] for one in shown] == [0, 1]
    assert [one.get("options", {}).get("quantum_s") for one in shown] == [None, 1.0]
    refused = call(*words, "--conventions", "muri", "--config", str(config))
    assert "--config: not accepted with --conventions muri" in str(refused.stderr)


def test_data_that_the_trace_lacks_for_muris_conventions_are_warned_of(trace: Path) -> None:
    """There policies know every run time."""
    words = ("--trace", str(trace), "--cluster", "1x2", "--conventions", "muri", "--policies", "srtf,muri-s,antman")
    result = call("compare", *words, "-j", 1, "--json")
    found = json.loads(result.stdout)["warnings"]
    assert [warning.split(":")[:2] for warning in found] == [
        ["muri-s", " no job has stage times"],
        ["antman", " no job has opportunistic priority"],
        ["antman", " no job has stage times"],
    ]
    assert result.stderr.splitlines() == [f"warning: {warning}" for warning in found]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "srfs"], "unknown policy 'srfs'; did you mean 'srtf'"),
        (["--policy", "explsched:ahsa"], "unknown sweep strategy 'ahsa'; did you mean 'asha'"),
        (["--policy", "srsf:asha"], "'srsf:asha': only explsched has variants, such as explsched:asha"),
        (["--policy", "fifo", "--conventions", "muri"], "unknown policy 'fifo' .*muri conventions: srtf"),
        (
            ["--policy", "srsf", "--conventions", "muri", "--interval", "5"],
            "--interval: not accepted with --conventions muri",
        ),
        (["--policy", "fifo", "--estimates", "guessed"], "estimates 'guessed' unknown .*accepted: exact"),
        (["--policy", "fifo", "--interval", "0"], "--interval: 0.0 is out of range"),
        (["--policy", "fifo", "--plot", "a.jpeg"], "unknown kind of picture '.jpeg'"),
        (["--policy", "fifo", "--plot", "no/such/a.png"], "directory .* does not exist"),
        (["--policy", "fifo", "--jobs-csv", "no/such/a.csv"], "directory .* does not exist"),
        (["--policy", "fifo", "--format", "excel"], "'excel' is not one of"),
        (["--policy", "fifo", "--estimates", "noisy:1", "--seed", "-1"], "-1 is not in the range x>=0"),
        (
            ["--policy", "muri-s", "--conventions", "muri", "--max-members", str(MAX_MEMBERS + 1)],
            f"is not in the range 1<=x<={MAX_MEMBERS}",
        ),
        ([], "Missing option '--policy'"),
    ],
)
def test_wrong_usage_is_named(words: list[str], says: str, trace: Path) -> None:
    result = call("simulate", "--trace", str(trace), "--cluster", "1x2", *words)
    assert result.exit_code == 2
    assert re.search(says, " ".join(result.stderr.split()))


@pytest.mark.parametrize("policies", ["", "fifo,", "fifo,fifo", "fifo,,srsf"])
def test_a_strange_list_of_policies_is_refused(policies: str, trace: Path) -> None:
    result = call("compare", "--trace", str(trace), "--cluster", "1x2", "--policies", policies)
    assert result.exit_code == 2
    assert "distinct names, comma-separated" in result.stderr


def test_a_missing_trace_and_a_strange_cluster_are_errors_of_one_line(trace: Path) -> None:
    for words in (["--trace", "no.csv", "--cluster", "1x2"], ["--trace", str(trace), "--cluster", "1by2"]):
        done = subprocess.run(
            [sys.executable, "-m", "explsched.cli", "simulate", *words, "--policy", "fifo"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("sexplsched: error: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_of_one_line(trace: Path) -> None:
    result = call("simulate", "--trace", str(trace), "--cluster", "1x2", "--policy", "fifo", "--jobs-csv", "/dev/full")
    assert result.exit_code == 1
    assert re.fullmatch(r"Error: cannot write: .*No space left.*'/dev/full'", result.stderr.splitlines()[-1])
    assert result.stdout.startswith("fifo on 2 GPUs")


@pytest.mark.parametrize("option", ["--jobs-csv", "--cluster-csv", "--plot"])
def test_a_file_that_cannot_be_written_keeps_what_it_had(trace: Path, tmp_path: Path, option: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    path.write_text("precious")
    command = [sys.executable, "-m", "explsched.cli", "simulate", "--cluster", "1x2", "--policy", "fifo", "--trace"]
    done = subprocess.run(
        [*command, str(trace), option, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 1
    assert str(path) in done.stderr.splitlines()[-1]
    assert done.stdout.startswith("fifo on 2 GPUs")
    assert path.read_text() == "precious"
    assert list(tmp_path.glob("*out*")) == [path]


def test_the_page_for_admins_explains_every_figure() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    for figure in figures():
        assert f"| `{figure.name}` | {figure.unit} | {figure.text} |" in page
    assert COMMAND in page
