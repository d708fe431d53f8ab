"""Searches: what their files may say, and what a pass does with what others left behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from explsched.cli import root
from explsched.errors import ExplschedError, SlurmUnreachableError
from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin import config as configuration
from slurm_plugin.client import process
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob, SlurmNode
from slurm_plugin.sweeps.search import Search, SearchStanding
from slurm_plugin.sweeps.search_file import SearchError, keys, load, of_pass
from tests.docs.blocks import ROOT, blocks
from tests.slurm_kit import record

GOOD: dict[str, Any] = {
    "name": "digits",
    "command": ["python", "train.py"],
    "space": {"lr": {"low": 1e-4, "high": 1.0, "log": True}},
    "budget": {"trials": 10},
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}))
    return path


def test_a_file_with_all_it_needs(tmp_path: Path) -> None:
    found = load(written(tmp_path, space={"opt": {"values": ["sgd", True, 3]}, "n": {"low": 1, "high": 1}}))
    assert (found.metric, found.direction, found.sampler, found.parallel, found.job.gpus) == (
        "loss",
        "min",
        "tpe",
        4,
        1,
    )
    assert found.space["opt"].values == ("sgd", True, 3.0)


def test_the_file_in_the_docs_is_right(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "sweeps.md") if block.language == "yaml")
    path = tmp_path / "sweep.yaml"
    path.write_text(block.text)
    assert load(path).space.keys() == {"lr", "width", "optimizer"}


@pytest.mark.parametrize("option", ["--gres=gpu:2", "--gpus=2", "-G2", "--tres-per-task=gres/gpu:1"])
def test_gpu_hours_are_enough_where_sbatch_is_asked_for_gpus(tmp_path: Path, option: str) -> None:
    assert load(written(tmp_path, budget={"gpu_hours": 1}, job={"gpus": 0, "sbatch": [option]})).job.gpus == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "space: is empty"),
        ({"space": {"lr": {}}}, "space.lr: is empty: accepted are values, or low and high"),
        ({"space": {"lr": {"low": 1.0}}}, "space.lr: is empty"),
        ({"space": {"lr": {"low": 1.0, "high": 0.1}}}, "space.lr: is empty: low 1 is above high 0.1"),
        (
            {"space": {"lr": {"low": 0, "high": 1, "log": True}}},
            "space.lr: log: accepted with low above 0, found low 0",
        ),
        ({"space": {"n": {"low": 0.5, "high": 2, "integer": True}}}, "space.n: integer: accepted with whole low and"),
        (
            {"space": {"n": {"low": 1, "high": 9e18, "integer": True}}},
            "space.n: integer: accepted from -9007199254740992",
        ),
        ({"space": {"x": {"low": -1e308, "high": 1e308}}}, "space.x: low and high are too far apart: found -1e+308"),
        ({"space": {"lr": {"values": [1, 2], "low": 0}}}, "space.lr: has values, which leave no room for low"),
        ({"space": {"lr": {"values": [1, 1]}}}, "space.lr: values: found one twice"),
        ({"space": {"lr": {"values": [1, "1"]}}}, "space.lr: values: found one twice"),
        ({"space": {"lr": {"values": [True, 1]}}}, "space.lr: values: found a number and its truth value"),
        ({"space": {"lr": {"values": [float("nan"), 1]}}}, "space.lr: values: accepted are finite numbers"),
        ({"space": {"lr": {"low": float("nan"), "high": 1}}}, "space.lr.low: must be a number"),
        (
            {"space": {"opt": {"values": ["sgd", None]}}},
            "space.opt.values: must be a list, each true or false or a number or a string, found ['sgd', None]",
        ),
        ({"space": {"1 r": {"values": [1]}}}, "space: name '1 r'"),
        ({"sampler": "grid"}, "space.lr: sampler grid accepts values only"),
        (
            {"sampler": "grid", "space": {name: {"values": list(range(10))} for name in "abcdef"}},
            "space: a grid of 1000000 trials: accepted are 100000",
        ),
        ({"sampler": "tp"}, "sampler: must be one of tpe, random, grid, found 'tp'"),
        ({"budget": {}}, "budget: is empty"),
        ({"budget": {"gpu_hours": 1}, "job": {"gpus": 0}}, "budget.gpu_hours: trials without GPUs never use it up"),
        ({"command": []}, "command: must be a list"),
        ({"nmae": "x"}, "unknown key 'nmae'; did you mean 'name'"),
        ({"name": "a b"}, "name: must be a string matching"),
        ({"job": {"sxrun": ["--follow", "m.csv"]}}, "job.sxrun: with --follow all trials would follow one file"),
        (
            {"job": {"sbatch": ["--comment", "mine"]}},
            "job.sbatch: found '--comment', accepted is what leaves a trial one",
        ),
        (
            {"job": {"sbatch": ["--hold", "-a0-3"]}},
            "job.sbatch: found '-a0-3', accepted is what leaves a trial one job",
        ),
        (
            {"job": {"sbatch": ["--direction=max"]}},
            "found '--direction=max', which the key direction of this file says",
        ),
        (
            {"job": {"sbatch": ["--nice", "--metric", "acc"]}},
            "found '--metric', which the key metric of this file says",
        ),
        ({"job": {"sbatch": ["--params=lr=1"]}}, "found '--params=lr=1', which the key space of this file says"),
        ({"job": {"sbatch": ["--expl-sw=x"]}}, "found '--expl-sw=x', which the key name of this file says"),
        ({"job": {"sbatch": ["--partition", "a", "run.sh"]}}, "job.sbatch: found 'run.sh', accepted are options of"),
        ({"job": {"checkpoint": "KILL"}}, "job.checkpoint: found 'KILL', accepted: USR1, USR2"),
    ],
)
def test_faults_are_named_with_file_and_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ExplschedError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_numbers_and_time_limits_are_read_as_they_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: digits\ncommand: [python, train.py]\nbudget: {trials: 1e2}\njob: {time: 2:00:00}\n"
        "space: {lr: {low: 1e-4, high: 1E0, log: true}, decay: {values: [1e-4, 1e-3]}}\n"
    )
    found = load(path)
    assert (found.space["lr"].low, found.space["lr"].high, found.budget.trials) == (1e-4, 1.0, 100)
    assert (found.job.time, found.space["decay"].values) == ("2:00:00", ("1e-4", "1e-3"))


def test_job_options_that_the_file_has_no_key_for_are_accepted(tmp_path: Path) -> None:
    given = ("--limit=0.5", "--expl-share=best-effort", "--expl-job-class", "opportunistic", "--exclusive")
    assert load(written(tmp_path, job={"sbatch": [*given]})).job.sbatch == given


def test_one_wrong_key_is_one_fault(tmp_path: Path) -> None:
    with pytest.raises(ExplschedError) as caught:
        load(written(tmp_path, space={"lr": {"low": "small", "high": 1.0}}, budget={"trials": -1}))
    assert str(caught.value).count("\n") == 1


def run(*words: object) -> Any:
    return CliRunner().invoke(root, ["sweep", "run", *map(str, words)])


def test_every_key_is_told_with_its_default_without_a_file() -> None:
    done = run("--keys")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "job.early_stop allow early stopping; false: a trial is never stopped; true or false (default: true)" in told
    assert all(key.meaning for key in keys())


def test_a_missing_optuna_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.cli.sweep.find_spec", lambda _name: None)
    done = run(written(tmp_path))
    wanted = f"{platform.node()} lacks it: pip --python {sys.executable} install 'explsched[optuna]'"
    assert str(done.exception).endswith(f"sweep run needs Optuna on every node, {wanted}")
    assert not (tmp_path / "digits.sweep").exists()


def test_waiting_tells_how_far_the_search_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    first = SearchStanding("digits", str(tmp_path), 0, 0, 2, (), 0.0, None, None, {}, finished=False)
    found = iter([first, first, replace(first, ended=1), replace(first, ended=2, under_way=0, finished=True)])
    monkeypatch.setattr("slurm_plugin.cli.sweep.POLL_S", 0.0)
    monkeypatch.setattr("slurm_plugin.sweeps.search.Search.advance", lambda _search, _now_s, **_how: next(found))
    done = run(path, "--wait")
    assert [line.split(" (")[0] for line in done.stderr.splitlines()] == [f"digits: {n} trials ended" for n in (0, 1)]
    assert all(line.endswith("it continues without this command") for line in done.stderr.splitlines())
    assert done.stdout.startswith("digits: 2 trials ended")


def test_who_waits_goes_on_waiting_while_slurmctld_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SearchStanding("digits", str(tmp_path), 0, 0, 2, (), 0.0, None, None, {}, finished=False)
    found = iter([first, None, None, first, replace(first, ended=2, finished=True)])

    def advance(_search: Search, _now_s: float, **_how: bool) -> SearchStanding:
        if (standing := next(found)) is None:
            raise SlurmUnreachableError("squeue: Connection refused")
        return standing

    monkeypatch.setattr("slurm_plugin.cli.sweep.POLL_S", 0.0)
    monkeypatch.setattr("slurm_plugin.sweeps.search.Search.advance", advance)
    done = run(written(tmp_path), "--wait")
    assert done.exit_code == 0, done.output
    shown = [line.split(" (")[0] for line in done.stderr.splitlines()]
    assert shown == [
        "digits: 0 trials ended",
        "squeue: Connection refused; waiting until it answers",
        "digits: 0 trials ended",
    ]


SLURM = """\
#!{python}
import json, os, sys
from pathlib import Path
here = Path({here!r})
calls = here / "submitted"
name = Path(sys.argv[0]).name
if name == "sbatch":
    refuses = here / "refuses"
    if refuses.exists() and "--job-name=" + (refuses.read_text() or "digits-0") in sys.argv:
        sys.exit("sbatch: error: no such partition")
    number = len(calls.read_text().splitlines()) + 1 if calls.exists() else 1
    (here / "script").write_text(sys.stdin.read())
    (here / "environment").write_text(json.dumps(dict(os.environ)))
    with calls.open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\\n")
    print(number)
elif name == "scancel":
    (here / "cancelled").write_text(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch and scancel that note what they get, squeue without jobs, a release; returns the notes of sbatch."""
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        (tmp_path / "bin" / name).write_text(SLURM.format(python=sys.executable, here=str(tmp_path)))
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/ordered\necho slurm 22.05.8\n')
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    config = tmp_path / "explsched.yaml"
    config.write_text(json.dumps({"progress": {"spool": str(tmp_path)}}))
    monkeypatch.setenv("SEXPLSCHED_CONFIG", str(config))
    return tmp_path / "submitted"


@pytest.fixture
def in_slurm(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A search of which Slurm runs a pass now, as job 90; returns its file."""
    by_slurm(monkeypatch)
    return written(tmp_path, parallel=2)


def is_requeued(notes: Path) -> bool:
    """Whether the pass has had Slurm make it again."""
    ordered = notes.parent / "ordered"
    return ordered.exists() and "requeue Incomplete 90" in ordered.read_text().splitlines()


def calls(notes: Path) -> list[list[str]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


optuna_is_needed = pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed (explsched[optuna])")


@optuna_is_needed
def test_trials_are_submitted_as_sxbatch_would(tmp_path: Path, slurm: Path) -> None:
    job = {"gpus": 2, "checkpoint": "USR1", "sbatch": ["--partition=main"], "sxrun": ["--follow", "{trial}/m.csv"]}
    command = ["python", "train.py", "--out", "{trial}"]
    path = written(tmp_path, parallel=2, metric="acc", direction="max", job=job, command=command)
    done = run(path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["under_way"] == 2
    first, _, _, following, _ = calls(slurm)
    (comment,) = (word for word in first if word.startswith("--comment="))
    assert comment.startswith("--comment=explsched:sweep=digits&metric=acc&direction=max&params=lr%3D")
    assert comment.endswith(":0")
    assert {"--gpus-per-node=2", "--requeue", "--partition=main", "--job-name=digits-0"} <= set(first)
    script = (tmp_path / "digits.sweep/trials/0/job.sh").read_text()
    trial = tmp_path / "digits.sweep/trials/0"
    assert f" -m wrappers.sxrun --follow {trial}/m.csv -- python train.py --out {trial} --lr=" in script
    assert {"--dependency=afterany:1?afterany:3", "--partition=main"} <= set(following)


@optuna_is_needed
def test_the_environment_grants_trials_nothing_that_the_file_does_not(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"EARLY_STOP": "1", "CHECKPOINT": "USR2", "ELASTIC": "1-8", "JOB_CLASS": "opportunistic", "LIMIT": "0.5"}
    for name, value in told.items():
        monkeypatch.setenv(f"EXPLSCHED_{name}", value)
    monkeypatch.setenv("SXBATCH_TEMPLATE", "sweep")
    monkeypatch.setenv("EXPLSCHED_SPOOL", "/scratch/spool")
    done = run(written(tmp_path, parallel=1, job={"early_stop": False}))
    assert done.exit_code == 0, done.output
    trial, _ = calls(slurm)
    (comment,) = (word for word in trial if word.startswith("--comment="))
    assert comment.startswith("--comment=explsched:sweep=digits&metric=loss&direction=min&params=lr%3D")
    assert comment.count("&") == 3
    assert trial[-1] == str(tmp_path / "digits.sweep/trials/0/job.sh")
    given = json.loads((tmp_path / "environment").read_text())
    assert [name for name in told if f"EXPLSCHED_{name}" in given] == []
    assert given["EXPLSCHED_SPOOL"] == "/scratch/spool"


@optuna_is_needed
def test_passes_run_for_the_account_of_the_trials_however_it_is_given(tmp_path: Path, slurm: Path) -> None:
    given = ["-p", "gpu", "--account", "physics", "-qhigh", "--gres", "gpu:a100:1", "--nice"]
    run(written(tmp_path, parallel=1, job={"sbatch": given}))
    trial, following = calls(slurm)
    assert trial[-9:-1] == given
    assert following[-5:] == given[:5]


@optuna_is_needed
def test_trials_run_where_the_search_was_begun(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, parallel in (("project", 1), ("home", 2)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert run(written(tmp_path, parallel=parallel)).exit_code == 0
    where = [word for words in calls(slurm) for word in words if word.startswith("--chdir=")]
    assert len(calls(slurm)) == 6  # the first trial twice: squeue shows none
    assert where == [f"--chdir={tmp_path}/project"] * 6


@optuna_is_needed
def test_a_command_is_given_whole_values(tmp_path: Path, slurm: Path) -> None:
    path = "/models/" + 140 * "x"
    space = {"seed": {"values": [12_345_678_901]}, "n": {"low": 4e10 + 1, "high": 4e10 + 1, "integer": True}}
    run(written(tmp_path, space={**space, "model": {"values": [path]}}, parallel=1))
    script = (tmp_path / "digits.sweep/trials/0/job.sh").read_text()
    assert f"--model={path} --n=40000000001 --seed=12345678901\n" in script


@optuna_is_needed
def test_a_value_may_have_several_lines(tmp_path: Path, slurm: Path) -> None:
    assert run(written(tmp_path, space={"prompt": {"values": ["a\nb"]}}, parallel=1)).exit_code == 0
    assert "'--prompt=a\nb'" in (tmp_path / "digits.sweep/trials/0/job.sh").read_text()
    assert not any("params=" in word for word in calls(slurm)[0])


@optuna_is_needed
def test_slurm_replaces_nothing_in_the_name_of_a_directory(tmp_path: Path, slurm: Path) -> None:
    (tmp_path / "100%j").mkdir()
    assert run(written(tmp_path / "100%j", parallel=1)).exit_code == 0
    outputs = [word for words in calls(slurm) for word in words if word.startswith("--output=")]
    assert outputs == [f"--output={tmp_path}/100%%j/digits.sweep/{name}" for name in ("trials/0/output", "passes.log")]


@optuna_is_needed
def test_a_trial_that_cannot_be_claimed_fails_and_says_so(tmp_path: Path, slurm: Path) -> None:
    run(written(tmp_path, parallel=1))
    trial = tmp_path / "digits.sweep/trials/0"
    script = (trial / "job.sh").read_text()
    trial.rename(tmp_path / "elsewhere")
    job = {**os.environ, "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", script], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("this trial cannot be claimed: ln: ")
    assert f"{trial}/claim" in done.stdout


@optuna_is_needed
def test_a_trial_runs_where_explsched_is_not_on_its_path(tmp_path: Path, slurm: Path) -> None:
    run(written(tmp_path, parallel=1, command=["echo", "trained"]))
    job = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "EXPLSCHED_PROGRESS_FILE": str(tmp_path / "progress")}
    script = (tmp_path / "digits.sweep/trials/0/job.sh").read_text()
    done = subprocess.run(["bash", "-c", script], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained --lr=")


@optuna_is_needed
def test_a_trial_without_the_environment_of_its_submission_knows_its_metric(tmp_path: Path, slurm: Path) -> None:
    shows = ["bash", "-c", "echo $EXPLSCHED_METRIC $EXPLSCHED_CHECKPOINT $EXPLSCHED_SHARE"]
    job = {"checkpoint": "USR2", "sbatch": ["--export=NONE", "--share=best-effort"]}
    done = run(written(tmp_path, parallel=1, command=shows, metric="f1 of 'b'", job=job))
    assert (done.exit_code, done.stderr) == (0, "")
    bare = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "EXPLSCHED_PROGRESS_FILE": str(tmp_path / "progress")}
    script = (tmp_path / "digits.sweep/trials/0/job.sh").read_text()
    ran = subprocess.run(["bash", "-c", script], env=bare, capture_output=True, text=True, check=False)
    assert ran.stdout == "f1 of 'b' USR2 best-effort\n", ran.stderr


@optuna_is_needed
def test_all_trials_are_given_the_same_environment(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of Slurm's does not have the SBATCH_EXPORT of the shell in which the search was begun."""
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    assert run(written(tmp_path, parallel=1)).exit_code == 0
    assert "SBATCH_EXPORT" not in json.loads((tmp_path / "environment").read_text())


@optuna_is_needed
def test_what_a_killed_pass_left_is_mended(tmp_path: Path, slurm: Path) -> None:
    path = written(tmp_path, parallel=2)
    (tmp_path / "refuses").touch()
    assert "no such partition" in str(run(path).exception)  # as if killed between Optuna's line and sbatch
    directory = tmp_path / "digits.sweep"
    journal = directory / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "half')
    (directory / "study.journal.lock").touch()
    (tmp_path / "refuses").unlink()
    before = (directory / "trials/0/job.sh").read_text()
    assert json.loads(run(path, "--json").stdout)["under_way"] == 2
    assert (directory / "trials/0/job.sh").read_text() == before  # the same hyper-parameters
    assert [word for call in calls(slurm) for word in call if word.startswith("--job-name=")] == [
        "--job-name=digits-0",
        "--job-name=digits-next",
        "--job-name=digits-1",
        "--job-name=digits-next",
    ]


def jobs_of(notes: Path) -> list[tuple[str, str]]:
    """Of each submission the job's name, and when it may start."""
    found = []
    for words in calls(notes):
        told = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        found.append((told["job-name"], told.get("begin", "") or told.get("dependency", "")))
    return found


@optuna_is_needed
def test_a_pass_of_slurms_that_is_killed_is_made_again(in_slurm: Path, slurm: Path) -> None:
    assert run(in_slurm).exit_code == 0
    first, *trials, last = jobs_of(slurm)
    assert first == ("digits-next", "now+600")
    assert trials == [("digits-0", ""), ("digits-1", "")]
    assert last == ("digits-next", "afterany:2?afterany:3")
    assert (slurm.parent / "cancelled").read_text().split()[-1] == "1"


def script_runs(notes: Path) -> int:
    """Run the script of the last pass that was submitted, as Slurm would; returns its exit status."""
    return subprocess.run(["sh", "-c", (notes.parent / "script").read_text()], check=False).returncode


@optuna_is_needed
@pytest.mark.parametrize(
    ("what", "status", "requeued"),
    [
        ("exit 0", 0, False),
        ("kill -9 $$", 137, True),
        ("exit 1", 1, True),
        ("exec /not/mounted/python", 127, True),
    ],
)
def test_a_pass_that_fails_or_is_killed_or_not_there_is_requeued_where_no_other_waits(
    in_slurm: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch, what: str, status: int, *, requeued: bool
) -> None:
    """Slurm's job is the shell above it, which a kill for want of memory leaves."""
    python = slurm.parent / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{what}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert run(in_slurm).exit_code == 0
    assert script_runs(slurm) == status
    assert is_requeued(slurm) is requeued
    (slurm.parent / "ordered").unlink()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "5000")
    assert script_runs(slurm) == status
    assert not is_requeued(slurm)
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    (comment,) = (word.partition("=")[2] for word in calls(slurm)[-1] if word.startswith("--comment="))
    (slurm.parent / "bin" / "squeue").write_text(f"#!/bin/sh\necho {comment}\n")
    assert script_runs(slurm) == status
    assert not is_requeued(slurm)


@optuna_is_needed
@pytest.mark.parametrize("name", ["sweep.yaml", "explsched.yaml"])
def test_a_file_that_is_wrong_for_a_moment_does_not_end_the_search(in_slurm: Path, slurm: Path, name: str) -> None:
    assert run(in_slurm).exit_code == 0
    before, path = jobs_of(slurm), slurm.parent / name
    right = path.read_text()
    for wrong in (lambda: path.write_text("nmae: x\n"), path.unlink):
        wrong()
        assert script_runs(slurm) == 1
        assert is_requeued(slurm)
        (slurm.parent / "ordered").unlink()
    assert jobs_of(slurm) == before
    path.write_text(right)
    assert script_runs(slurm) == 0
    assert not is_requeued(slurm)


@optuna_is_needed
def test_a_pass_that_stops_the_search_after_failures_says_so_and_is_not_repeated(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=10, budget={"trials": 40})
    run(path)
    all_are_over(path)
    by_slurm(monkeypatch)
    done = run(path)
    assert done.exit_code == 0
    assert "the last 10 trials ended" in done.stderr
    assert (tmp_path / "cancelled").read_text().split()[-1] == str(len(calls(slurm)))  # what it had submitted first


@optuna_is_needed
def test_a_pass_takes_no_module_of_the_directory_in_which_trials_run(in_slurm: Path, slurm: Path) -> None:
    assert run(in_slurm).exit_code == 0
    (slurm.parent / "random.py").write_text("raise SystemExit(9)\n")
    (slurm.parent / "optuna.py").write_text("raise SystemExit(9)\n")
    script = (slurm.parent / "script").read_text()
    done = subprocess.run(["sh", "-c", script], cwd=slurm.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("digits: 0 trials ended")


@optuna_is_needed
def test_a_pass_whose_trials_slurm_refuses_is_made_again(in_slurm: Path, slurm: Path) -> None:
    (slurm.parent / "refuses").touch()
    assert "no such partition" in str(run(in_slurm).exception)
    assert jobs_of(slurm) == [("digits-next", "now+600")]
    assert (slurm.parent / "cancelled").read_text().split()[-1] == "1"


@optuna_is_needed
def test_a_pass_of_slurms_without_a_successor_fails(in_slurm: Path, slurm: Path) -> None:
    (slurm.parent / "refuses").write_text("digits-next")
    assert "no such partition" in str(run(in_slurm).exception)
    assert jobs_of(slurm) == [("digits-0", "")]


@optuna_is_needed
def test_slurmctld_is_asked_until_it_answers(in_slurm: Path, slurm: Path) -> None:
    assert run(in_slurm).exit_code == 0
    here, silent = slurm.parent, "slurm_load_jobs error: Unable to contact slurm controller"
    for name in ("squeue", "sbatch", "scontrol"):
        (here / "bin" / name).write_text(f"#!/bin/sh\necho {name} >>{here}/asked\necho {silent} >&2\nexit 1\n")

    answers = f"printf '#!/bin/sh\\necho $* >>{here}/ordered\\n' >{here}/bin/scontrol"
    (here / "bin" / "sleep").write_text(f"#!/bin/sh\n{answers}\n")
    (here / "bin" / "sleep").chmod(0o755)
    assert script_runs(slurm) == 1
    # Its release; whether another pass waits, and to requeue this one; the former again.
    assert (here / "asked").read_text().split() == ["scontrol", "squeue", "scontrol", "squeue"]
    assert is_requeued(slurm)


@optuna_is_needed
def test_a_pass_whose_storage_fails_leaves_another_where_slurm_takes_it(in_slurm: Path, slurm: Path) -> None:
    trials = slurm.parent / "digits.sweep" / "trials"
    trials.parent.mkdir()
    trials.touch()
    for refused in ("nothing", "digits-next"):
        (slurm.parent / "refuses").write_text(refused)
        assert "Not a directory" in str(run(in_slurm).exception)
    assert jobs_of(slurm) == [("digits-next", "now+600")]


def test_a_pass_on_a_node_without_optuna_says_so_and_fails(
    in_slurm: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.cli.sweep.find_spec", lambda _name: None)
    done = run(in_slurm)
    assert done.exit_code == 1
    assert f"needs Optuna on every node, {platform.node()} lacks it" in str(done.exception)
    assert jobs_of(slurm) == []


@optuna_is_needed
@pytest.mark.parametrize("looks", [False, True], ids=["reserved", "a-look-waits"])
def test_a_place_that_a_trial_needs_is_not_kept_for_the_next_pass(
    in_slurm: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch, *, looks: bool
) -> None:
    submit, present = process.run, set[str]()
    if looks:
        (slurm.parent / "refuses").touch()
        run(in_slurm)
        (slurm.parent / "refuses").unlink()
        comment = next(word.partition("=")[2] for word in calls(slurm)[0] if word.startswith("--comment="))
        monkeypatch.setattr(CliClient, "tagged_jobs", lambda *_: (record(1, state="PENDING", comment=comment),))
        present.add("1")

    def one_at_most(argv: Sequence[str], *rest: Any) -> process.CommandOutput:
        """Slurm has one place for the user beside that of the pass itself."""
        if argv[0] == "scancel":
            present.difference_update(argv)
        if not argv[0].endswith("sbatch"):
            return submit(argv, *rest)
        if present:
            return process.CommandOutput(1, "", "sbatch: error: AssocMaxSubmitJobLimit")
        answer = submit(argv, *rest)
        present.add(answer.out.strip())
        return answer

    monkeypatch.setattr(process, "run", one_at_most)
    assert "AssocMaxSubmitJobLimit" in str(run(in_slurm).exception)
    assert [name for name, _ in jobs_of(slurm)] == ["digits-next", "digits-0"]
    assert present == {"2"}


@optuna_is_needed
def test_a_trial_that_slurm_refuses_does_not_end_the_search(tmp_path: Path, slurm: Path) -> None:
    (tmp_path / "refuses").write_text("digits-1")
    assert "no such partition" in str(run(written(tmp_path, parallel=2)).exception)
    assert jobs_of(slurm) == [("digits-0", ""), *[("digits-next", "afterany:1")] * 2]
    assert (tmp_path / "cancelled").read_text().split()[-1] == "2"


@optuna_is_needed
@pytest.mark.parametrize(("most", "begun"), [(3, ["digits-0", "digits-1"]), (4, ["digits-0", "digits-1", "digits-2"])])
def test_a_search_goes_on_where_its_trials_are_all_that_slurm_takes(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch, most: int, begun: list[str]
) -> None:
    submit = process.run

    def at_most(argv: Sequence[str], *rest: Any) -> process.CommandOutput:
        if argv[0].endswith("sbatch") and len(calls(slurm)) == most:
            return process.CommandOutput(1, "", "sbatch: error: AssocMaxSubmitJobLimit")
        return submit(argv, *rest)

    monkeypatch.setattr(process, "run", at_most)
    done = run(written(tmp_path, parallel=3))
    assert ("AssocMaxSubmitJobLimit" in str(done.exception)) is (len(begun) < 3)
    assert [name for name, _ in jobs_of(slurm) if name != "digits-next"] == begun
    assert ("digits-next", "afterany:1") in jobs_of(slurm)
    assert not (tmp_path / "cancelled").exists()


@optuna_is_needed
def test_who_waits_leaves_a_pass_that_watches_the_same_trials(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurm_plugin.sweeps.search import Search

    def jobs(_client: CliClient, _prefix: str) -> tuple[SlurmJob, ...]:
        """All that were submitted, without those that were cancelled."""
        told = [word.partition("=")[2] for words in calls(slurm) for word in words if word.startswith("--comment=")]
        cancelled = (tmp_path / "cancelled").read_text().split() if told else []
        present = (record(at, state="PENDING", comment=comment) for at, comment in enumerate(told, start=1))
        return tuple(job for job in present if str(job.job_id) not in cancelled)

    monkeypatch.setattr(CliClient, "tagged_jobs", jobs)
    path = written(tmp_path, parallel=2)
    search = Search(path, load(path), configuration.load(tmp_path / "explsched.yaml"), None)
    assert [search.advance(0.0).under_way for _ in range(3)] == [2, 2, 2]
    assert jobs_of(slurm)[2:] == [("digits-1", ""), ("digits-next", "afterany:1?afterany:3")]


@optuna_is_needed
def test_passes_without_news_add_nothing_to_what_the_next_one_reads(tmp_path: Path, slurm: Path) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 1})
    sizes_bytes = []
    for _ in range(3):
        run(path)
        sizes_bytes.append((tmp_path / "digits.sweep" / "study.journal").stat().st_size)
    assert sizes_bytes == sizes_bytes[:1] * 3


@optuna_is_needed
def test_trials_that_explsched_has_paused_leave_their_places_once(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=2)
    assert run(path).exit_code == 0
    mark = f"explsched-trial:{json.loads((tmp_path / 'digits.sweep' / 'id').read_text())['id']}"
    paused = PreemptionRecord(0.0).plus(Interruption(0, 1.0, 1, 0.0, "makes room for job 7")).text()
    waits = record(1, state="PENDING", comment=f"explsched: {mark}:0", submit_s=0.0)
    for told, begun in (({}, []), ({"restarts": 1}, []), ({"restarts": 1, "admin_comment": paused}, ["digits-2"])):
        jobs = (replace(waits, **told), record(2, state="RUNNING", comment=f"explsched: {mark}:1"))
        monkeypatch.setattr(CliClient, "tagged_jobs", lambda *_, jobs=jobs: jobs)
        slurm.unlink()
        assert run(path).exit_code == 0
        assert [name for name, _ in jobs_of(slurm) if name != "digits-next"] == begun


@optuna_is_needed
def test_trials_that_slurm_holds_are_told(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their places until somebody releases them."""
    path = written(tmp_path, parallel=4)
    assert "held" not in run(path).stdout
    mark = f"explsched-trial:{json.loads((tmp_path / 'digits.sweep' / 'id').read_text())['id']}"
    reasons = ("JobHeldUser", "launch failed requeued held", "JobHoldMaxRequeue", "QOSUsageThreshold")
    jobs = tuple(record(n + 11, reason=reason, comment=f"explsched: {mark}:{n}") for n, reason in enumerate(reasons))
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda *_: jobs)
    assert "4 under way (3 of them held: `scontrol release 11,12,13`), 0.00 GPU-hours" in run(path).stdout
    assert json.loads(run(path, "--json").stdout)["held"] == [11, 12, 13]


@optuna_is_needed
def test_the_best_report_is_a_trials_value_and_one_without_has_failed(tmp_path: Path, slurm: Path) -> None:
    path = written(tmp_path, parallel=3, budget={"trials": 3})
    run(path)
    trials = tmp_path / "digits.sweep" / "trials"
    reported: list[list[float | None]] = [[3.0, 0.5, 0.75], [None, 2.0], []]
    for number, values in enumerate(reported):
        (trials / str(number) / "claim").symlink_to(str(100 + number))
        lines: list[dict[str, object]] = [{"time_s": 1.0, "event": "start"}]
        lines += [{"time_s": 2.0 + n, "step": n, "metric": "loss", "value": value} for n, value in enumerate(values)]
        (tmp_path / f"{100 + number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(run(path, "--json").stdout)
    assert (found["ended"], found["failed"], found["best"], found["best_trial"], found["finished"]) == (
        3,
        1,
        0.5,
        0,
        True,
    )
    assert found["best_params"].keys() == {"lr"}
    assert (tmp_path / "digits.sweep" / "lock").stat().st_mode & 0o077 == 0  # others cannot hold the search up
    assert found["gpu_h"] == pytest.approx(5 / 3600)
    assert f"(1 without a report: see {trials}/*/output)" in run(path).stdout


@optuna_is_needed
@pytest.mark.parametrize(
    ("second", "best"), [([0.9, 0.8, None, None], (0.8, 1)), ([0.9, None, None, None], (None, None))]
)
def test_a_diverged_trial_is_not_the_best_and_the_sampler_is_told(
    tmp_path: Path, slurm: Path, second: list[float | None], best: tuple[float | None, int | None]
) -> None:
    path = written(tmp_path, parallel=2, budget={"trials": 2})
    run(path)
    for number, values in enumerate(([0.1, None, None, None], second)):
        (tmp_path / f"digits.sweep/trials/{number}/claim").symlink_to(str(100 + number))
        lines = (
            {"time_s": 2.0 + n, "step": n, "metric": "loss", "value": value, **({} if value else {"bad": "nan"})}
            for n, value in enumerate(values)
        )
        (tmp_path / f"{100 + number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(run(path, "--json").stdout)
    assert (found["ended"], found["failed"], found["best"], found["best_trial"]) == (2, 0, *best)
    assert "1e+100" in (tmp_path / "digits.sweep/study.journal").read_text()


@optuna_is_needed
def test_a_trials_reports_are_read_to_the_last(tmp_path: Path, slurm: Path) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 1})
    run(path)
    (tmp_path / "digits.sweep/trials/0/claim").symlink_to("100")
    lines = ({"time_s": 3.6 * n, "step": n, "metric": "loss", "value": 1 / n} for n in range(1, 5002))
    (tmp_path / "100.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(run(path, "--json").stdout)
    assert (found["best"], found["gpu_h"]) == (1 / 5001, pytest.approx(5.0))


@pytest.fixture
def reported(tmp_path: Path, slurm: Path) -> Path:
    """A search whose only trial is over and has reported 0.5; returns its file."""
    path = written(tmp_path, parallel=1, budget={"trials": 1})
    run(path)
    (tmp_path / "digits.sweep/trials/0/claim").symlink_to("100")
    directory = tmp_path / str(os.geteuid())
    directory.mkdir()
    (directory / "100.jsonl").write_text(json.dumps({"time_s": 1.0, "step": 1, "metric": "loss", "value": 0.5}) + "\n")
    return path


@optuna_is_needed
def test_trials_whose_directories_are_removed_count_as_before(tmp_path: Path, slurm: Path) -> None:
    """Also in a study of a former release, without costs: trials are taken to have cost what the others did."""
    path, trials = written(tmp_path, parallel=4, budget={"trials": 4}), tmp_path / "digits.sweep" / "trials"
    run(path)
    for number, value in enumerate((3.0, 0.5, None, 1.0)):
        (trials / str(number) / "claim").symlink_to(str(100 + number))
        lines: list[dict[str, object]] = [{"time_s": 1.0, "event": "start"}]
        metric = "loss" if value else "accuracy"
        lines += [{"time_s": 3601.0, "step": 1, "metric": metric, "value": value or 1.0}]
        (tmp_path / f"{100 + number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = json.loads(run(path, "--json").stdout)
    assert (before["ended"], before["failed"], before["best"], before["gpu_h"]) == (4, 1, 0.5, pytest.approx(4.0))
    submitted, journal = len(calls(slurm)), tmp_path / "digits.sweep/study.journal"
    lines_of_release = [line for line in journal.read_text().splitlines(keepends=True) if '"gpu_h.' not in line]
    journal.write_text("".join(lines_of_release))
    for number in (1, 2):
        shutil.rmtree(trials / str(number))
    after = json.loads(run(path, "--json").stdout)
    assert after == {**before, "gpu_h": pytest.approx(before["gpu_h"])}
    assert len(calls(slurm)) == submitted


@optuna_is_needed
def test_the_budget_of_gpu_hours_stays_spent_when_all_directories_are_removed(tmp_path: Path, slurm: Path) -> None:
    path, trials = written(tmp_path, parallel=4, budget={"gpu_hours": 4}), tmp_path / "digits.sweep" / "trials"
    run(path)
    for number in range(4):
        (trials / str(number) / "claim").symlink_to(str(100 + number))
        lines = ({"time_s": 1.0 + 3600 * n, "step": n, "metric": "loss", "value": number + 1.0} for n in range(2))
        (tmp_path / f"{100 + number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before, submitted = json.loads(run(path, "--json").stdout), len(calls(slurm))
    assert (before["ended"], before["gpu_h"]) == (4, pytest.approx(4.0))
    shutil.rmtree(trials)
    assert json.loads(run(path, "--json").stdout) == before
    assert len(calls(slurm)) == submitted


@optuna_is_needed
@pytest.mark.parametrize("has_passed", [True, False])
def test_a_search_of_a_former_release_knows_what_it_has_spent(tmp_path: Path, slurm: Path, *, has_passed: bool) -> None:
    """Its study lacks that. Without a pass since then a trial counts from when it was begun, its wait included."""
    path, trials = written(tmp_path, parallel=2, budget={"gpu_hours": 4}), tmp_path / "digits.sweep" / "trials"
    run(path)
    for number in range(2):
        (trials / str(number) / "claim").symlink_to(str(100 + number))
        lines = ({"time_s": 1.0 + 7200 * n, "step": n, "metric": "loss", "value": number + 1.0} for n in range(2))
        (tmp_path / f"{100 + number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before, submitted = json.loads(run(path, "--json").stdout), len(calls(slurm))
    assert (before["ended"], before["gpu_h"]) == (2, pytest.approx(4.0))
    journal = tmp_path / "digits.sweep/study.journal"
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in told:
        if "datetime_start" in line:
            began = datetime.fromisoformat(line["datetime_start"]) - timedelta(hours=3)
            line["datetime_start"] = began.isoformat()
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in told if "gpu_h." not in str(line)))
    if has_passed:
        assert json.loads(run(path, "--json").stdout) == before
    shutil.rmtree(trials)
    after = json.loads(run(path, "--json").stdout)
    assert after["gpu_h"] == pytest.approx(4.0 if has_passed else 6.0, abs=0.5)
    assert (after["ended"], len(calls(slurm))) == (2, submitted)


@optuna_is_needed
def test_a_training_may_remove_its_own_directory(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 1})
    run(path)
    (comment,) = (word.partition("=")[2] for word in calls(slurm)[0] if word.startswith("--comment="))
    ended = record(100, state="COMPLETED", comment=comment)
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda _client, _prefix: (ended,))
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\n[ $5 = 100 ] && echo 1:00:00\n")
    (tmp_path / "100.jsonl").write_text(json.dumps({"time_s": 1.0, "step": 1, "metric": "loss", "value": 0.5}) + "\n")
    shutil.rmtree(tmp_path / "digits.sweep/trials/0")
    found = json.loads(run(path, "--json").stdout)
    assert (found["ended"], found["best"], found["finished"]) == (1, 0.5, True)


@optuna_is_needed
def test_while_the_spool_is_missing_no_trial_has_failed(reported: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps({"progress": {"spool": str(tmp_path / "unmounted")}}))
    done = run(reported, "--config", other)
    assert isinstance(done.exception, ExplschedError)
    assert f"{tmp_path}/unmounted: the reports of trial 0 cannot be read" in str(done.exception)
    assert json.loads(run(reported, "--json").stdout)["best"] == 0.5


@optuna_is_needed
@pytest.mark.parametrize("name", ["100.jsonl", str(os.geteuid())])
def test_while_the_spool_is_not_read_no_trial_has_failed(
    reported: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    really = os.open

    def stale(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        if path == name:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return really(path, flags, *mode, **options)

    with monkeypatch.context() as broken:
        broken.setattr("slurm_plugin.observation.spool.os.open", stale)
        done = run(reported)
    assert "the reports of trial 0 cannot be read" in str(done.exception)
    assert json.loads(run(reported, "--json").stdout)["best"] == 0.5


@optuna_is_needed
@pytest.mark.parametrize(
    ("gres", "fields", "gpus"),
    [
        ("gpu:a100:4", {"gpus": 4}, 4),
        ("shard:2", {"gpus": 0, "gpus_per_node": None, "shards_per_node": 2}, 0.5),
        ("gpu:1", {"gpus": 1, "gpu_nodes": (("n1", 1),), "node_names": ("n1",), "exclusive": "NODE"}, 4),
    ],
)
def test_gpu_hours_are_those_that_slurm_tells(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch, gres: str, fields: dict[str, Any], gpus: float
) -> None:
    """GPUs may be asked for in other ways than `gpus`, and a training may hang after its last report."""
    job = {"gpus": 0, "sbatch": [f"--gres={gres}"]}
    path = written(tmp_path, parallel=1, budget={"trials": 1}, job=job)
    run(path)
    (tmp_path / "digits.sweep/trials/0/claim").symlink_to("100")
    events = [{"time_s": 1.0 + 1800 * n, "restart": n // 2, "event": "start"} for n in range(4)]
    (tmp_path / "100.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    (comment,) = (word.partition("=")[2] for word in calls(slurm)[0] if word.startswith("--comment="))
    ended = record(100, state="TIMEOUT", restarts=1, comment=comment, **fields)
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda _client, _prefix: (ended,))
    node = SlurmNode("n1", "IDLE", 4, frozenset({"main"}), shards=16)
    monkeypatch.setattr(CliClient, "nodes", lambda _client: (node,))
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\n[ $5 = 100 ] && echo 2:00:00\n")
    assert json.loads(run(path, "--json").stdout)["gpu_h"] == pytest.approx(gpus * 2.5)


@optuna_is_needed
def test_gpu_hours_of_a_trial_that_slurm_has_forgotten_are_those_that_the_daemon_saw(
    tmp_path: Path, slurm: Path
) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 1})
    run(path)
    (tmp_path / "digits.sweep/trials/0/claim").symlink_to("100")
    events = [{"time_s": 1.0 + 1800 * n, "event": "start"} for n in range(3)]
    (tmp_path / "100.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    known = {"time_s": 1.0, "what": "joined", "job": 100, "user": "ada", "uid": os.geteuid(), "sweep": "digits"}
    notes = [{**known, "held_gpus": 1.0}, {**known, "held_gpus": 4.0}, {**known, "sweep": "other", "held_gpus": 2.0}]
    (tmp_path / "sweeps.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert json.loads(run(path, "--json").stdout)["gpu_h"] == pytest.approx(4.0)


@optuna_is_needed
def test_a_search_by_the_name_of_another_sweep_of_its_user_says_that_they_mix(tmp_path: Path, slurm: Path) -> None:
    """As after its directory was removed to start over."""
    other = {"time_s": 1.0, "what": "joined", "job": 100, "user": "ada", "uid": os.geteuid(), "sweep": "digits"}
    notes = ({**other, "sweep": "letters"}, {**other, "uid": os.geteuid() + 1})
    (tmp_path / "sweeps.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert run(written(tmp_path)).stderr == ""
    shutil.rmtree(tmp_path / "digits.sweep")
    (tmp_path / "sweeps.jsonl").write_text("".join(json.dumps(note) + "\n" for note in (*notes, other)))
    assert "your sweep 'digits' has trainings already (1): `sweep show` mixes them" in run(written(tmp_path)).stderr
    assert run(written(tmp_path)).stderr == ""


@optuna_is_needed
def test_trials_beyond_those_that_slurm_watches_are_seen_to_in_time(tmp_path: Path, slurm: Path) -> None:
    run(written(tmp_path, parallel=101, sampler="random", budget={"trials": 101}))
    (_, watches), (name, when) = jobs_of(slurm)[-2:]
    assert watches.count("afterany") == 100
    assert (name, when) == ("digits-next", "now+120")


@optuna_is_needed
@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({}, True),
        ({"job": {"sbatch": ["--checkpoint=USR2"]}}, True),
        ({"job": {}}, False),
        ({"budget": {"trials": 2}}, False),
        ({"sampler": "grid", "space": {"lr": {"values": [0.1, 0.2]}}}, False),
        ({"sampler": "grid", "space": {"lr": {"values": [0.1, 0.2, 0.3]}}}, True),
    ],
    ids=["signal", "sbatch", "no-signal", "no-budget", "no-point", "point"],
)
def test_a_search_looks_by_itself_for_places_that_paused_trials_may_leave(
    tmp_path: Path, slurm: Path, changes: dict[str, Any], *, looks: bool
) -> None:
    """Slurm starts no pass when a trial is paused; only where another would be submitted it matters."""
    assert run(written(tmp_path, parallel=2, **{"job": {"checkpoint": "USR1"}, **changes})).exit_code == 0
    assert (("digits-next", "now+120") in jobs_of(slurm)) is looks


@optuna_is_needed
def test_looks_replace_one_another_and_end_with_the_search(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 2}, job={"checkpoint": "USR1"})
    assert run(path).exit_code == 0
    assert jobs_of(slurm) == [("digits-0", ""), ("digits-next", "afterany:1"), ("digits-next", "now+120")]
    by_slurm(monkeypatch)
    mark, comment = (word.partition("=")[2] for call in calls(slurm)[:2] for word in call if "--comment" in word)
    trial = record(1, state="RUNNING", comment=mark)
    passes = [record(number, state="PENDING", comment=comment) for number in (2, 3)]
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda *_: (trial, *passes))
    assert run(path).exit_code == 0
    assert jobs_of(slurm)[3:] == [("digits-next", "afterany:1"), ("digits-next", "now+120")]
    assert (tmp_path / "cancelled").read_text().split()[-2:] == ["2", "3"]
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda *_: tuple(passes))
    for number in (0, 1):
        (tmp_path / f"digits.sweep/trials/{number}").mkdir(exist_ok=True)
        (tmp_path / f"digits.sweep/trials/{number}/claim").symlink_to(f"{100 + number}")
        assert run(path).exit_code == 0
    assert jobs_of(slurm)[5:] == [("digits-1", ""), ("digits-next", "afterany:6")], "no trial is left to be begun"
    assert (tmp_path / "cancelled").read_text().split()[-2:] == ["2", "3"]


@optuna_is_needed
def test_a_look_that_slurm_has_no_place_for_is_left_out(tmp_path: Path, slurm: Path) -> None:
    submitted = process.run
    with pytest.MonkeyPatch.context() as limit:

        def no_begin(argv: Sequence[str], *rest: Any) -> process.CommandOutput:
            if any(word.startswith("--begin") for word in argv):
                return process.CommandOutput(1, "", "sbatch: error: AssocMaxSubmitJobLimit")
            return submitted(argv, *rest)

        limit.setattr(process, "run", no_begin)
        done = run(written(tmp_path, parallel=1, job={"checkpoint": "USR1"}))
    assert done.exit_code == 0, done.output
    assert jobs_of(slurm) == [("digits-0", ""), ("digits-next", "afterany:1")]


@optuna_is_needed
def test_a_command_that_never_reports_does_not_go_on_for_ever(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=10, budget={"gpu_hours": 10})
    run(path)
    all_are_over(path)
    by_slurm(monkeypatch)
    told = run(path).stderr
    assert "the last 10 trials ended without a report of 'loss'" in told
    assert told.endswith("; no more are begun; fix the command and run `sweep run` again\n")
    assert len(trials_of(slurm)) == 10


@optuna_is_needed
def test_after_ten_failures_a_person_resumes_the_search_and_failures_count_anew(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken node or file system may be mended since. `--wait` is a person's in its first pass only."""
    path = written(tmp_path, parallel=10, budget={"trials": 40})
    run(path)
    all_are_over(path)
    done = run(path)
    assert done.exit_code == 0, done.output
    assert f"see {tmp_path}/digits.sweep/trials/*/output; the search goes on" in done.stderr
    assert trials_of(slurm)[10:] == [f"digits-{number}" for number in range(10, 20)]
    all_are_over(path)
    with monkeypatch.context() as passes:
        by_slurm(passes)
        assert "the last 10 trials ended" in run(path).stderr
    monkeypatch.setattr("time.sleep", lambda _seconds: all_are_over(path))
    assert "the last 10 trials ended" in str(run(path, "--wait").exception)
    assert trials_of(slurm)[20:] == [f"digits-{number}" for number in range(20, 30)]


@optuna_is_needed
def test_a_search_goes_on_as_its_file_said_where_the_file_is_another_searchs_by_now(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=1)
    run(path)
    (passes,) = (call for call in calls(slurm) if "--job-name=digits-next" in call)
    assert "--time-min=2" in passes, "a pass of seconds need not wait where 10 minutes do not fit"
    assert " --search digits " in (tmp_path / "script").read_text()
    before = load(path)
    written(tmp_path, name="other", space={"width": {"values": [1, 2]}})
    run(path)
    all_are_over(path)
    by_slurm(monkeypatch)
    done = run(path, "--search", "digits")
    assert done.exit_code == 0, done.output
    assert [name for name in trials_of(slurm) if name.startswith("digits")] == ["digits-0", "digits-1"]
    assert of_pass(path, "digits") == before, "the whole file is kept"
    with pytest.raises(SearchError, match="is search 'other' by now, and nothing was kept of 'third'"):
        of_pass(path, "third")


@optuna_is_needed
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda search: (search / "study.journal").unlink(), "study.journal: has 0 trials, of at least 2 that"),
        (lambda search: (search / "study.journal").write_bytes(bytes(99) + b"\n"), "study.journal: is damaged"),
        (
            lambda search: (search / "study.journal").write_bytes((search / "before").read_bytes()),
            "journal: has 1 trial",
        ),
        (lambda search: (search / "study.journal").write_text("null\n{}\n"), "study.journal: is damaged"),
        (lambda search: (search / "study.journal").write_bytes(b"\xff\n"), "study.journal: is damaged"),
        (lambda search: (search / "id").write_text(""), "id: is damaged"),
    ],
)
def test_no_results_are_told_of_other_trials_where_files_are_lost_or_damaged(
    tmp_path: Path, slurm: Path, spoil: Callable[[Path], object], words: str
) -> None:
    path, search = written(tmp_path, parallel=1), tmp_path / "digits.sweep"
    run(path)
    shutil.copy(search / "study.journal", search / "before")
    all_are_over(path)
    run(path)
    spoil(search)
    done = run(path)
    assert isinstance(done.exception, SearchError), done.exception
    assert words in str(done.exception)
    assert "restore its latest state from a backup, or choose another name" in str(done.exception)
    assert trials_of(slurm) == ["digits-0", "digits-1"]


@optuna_is_needed
def test_what_a_search_keeps_of_its_file_is_not_run_in_its_place(tmp_path: Path, slurm: Path) -> None:
    run(written(tmp_path, parallel=1))
    done = run(tmp_path / "digits.sweep" / "sweep.yaml")
    assert f"copy it to {tmp_path}, and run that" in str(done.exception)
    assert trials_of(slurm) == ["digits-0"]


@optuna_is_needed
def test_a_command_that_waits_does_not_put_back_what_its_file_said(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=1, budget={"trials": 1})

    def meanwhile(_seconds: float) -> None:
        written(tmp_path, parallel=1, budget={"trials": 6})
        run(path)
        all_are_over(path)

    monkeypatch.setattr("slurm_plugin.cli.sweep.time", SimpleNamespace(sleep=meanwhile, time=time.time))
    run(path, "--wait")
    assert load(tmp_path / "digits.sweep" / "sweep.yaml").budget.trials == 6


@optuna_is_needed
def test_a_pass_that_waits_for_another_says_so(tmp_path: Path, slurm: Path) -> None:
    path = written(tmp_path, parallel=1)
    run(path)
    with (tmp_path / "digits.sweep" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "explsched.cli", "sweep", "run", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as second:
            assert second.stderr is not None
            assert "another `sweep run` of this search is at work: waiting for its end" in second.stderr.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.wait(60) == 0


def by_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on Slurm makes the passes, as job 90."""
    monkeypatch.setenv("SLURM_JOB_ID", "90")
    monkeypatch.setenv("SLURM_JOB_NAME", "digits-next")


def all_are_over(path: Path) -> None:
    """All trials that were begun have run, as jobs 100 and up."""
    for trial in (path.parent / "digits.sweep" / "trials").glob("*"):
        if not (trial / "claim").is_symlink():
            (trial / "claim").symlink_to(f"{100 + int(trial.name)}")


def trials_of(notes: Path) -> list[str]:
    """The names of the jobs of trials that were submitted."""
    return [name for name, _when in jobs_of(notes) if name != "digits-next"]


def runs(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Trial `number` of the search runs, as job 1; all others that were begun are over, as jobs 100 and up."""
    directory = path.parent / "digits.sweep"
    mark = f"explsched-trial:{json.loads((directory / 'id').read_text())['id']}"
    job = record(1, state="RUNNING", comment=f"explsched: {mark}:{number}")
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda _client, _prefix: (job,))
    all_are_over(path)
    (directory / f"trials/{number}/claim").unlink()


@optuna_is_needed
def test_failures_in_a_row_leave_the_trials_under_way_their_results(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=11, budget={"trials": 99})
    assert run(path).exit_code == 0
    runs(monkeypatch, path, 0)
    slurm.unlink()
    by_slurm(monkeypatch)
    told = run(path).stderr
    assert "the last 10 trials ended without a report" in told
    assert "; no more are begun; those under way go on; " in told
    assert jobs_of(slurm) == [("digits-next", "now+600"), ("digits-next", "afterany:1")]
    monkeypatch.setattr(CliClient, "tagged_jobs", lambda _client, _prefix: ())
    (tmp_path / "digits.sweep/trials/0/claim").symlink_to("1")
    (tmp_path / "1.jsonl").write_text(json.dumps({"time_s": 1.0, "step": 1, "metric": "loss", "value": 0.5}) + "\n")
    assert "the last 10 trials ended without a report" in run(path).stderr
    found = json.loads(run(written(tmp_path, budget={"trials": 11}), "--json").stdout)
    assert (found["finished"], found["best"]) == (True, 0.5)
    assert json.loads((tmp_path / "digits.sweep/trials/0/result").read_text())["value"] == 0.5
    assert trials_of(slurm) == []


@optuna_is_needed
def test_ten_that_fail_are_no_row_while_one_begun_among_them_runs(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, parallel=11, budget={"trials": 99})
    assert run(path).exit_code == 0
    runs(monkeypatch, path, 5)
    found = json.loads(run(path, "--json").stdout)
    assert (found["failed"], found["under_way"]) == (10, 11)


@optuna_is_needed
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_pass_proposes_what_another_has_proposed(tmp_path: Path, slurm: Path, sampler: str) -> None:
    for parallel in (2, 4, 6):
        assert run(written(tmp_path, parallel=parallel, sampler=sampler)).exit_code == 0
        for path in (tmp_path / "digits.sweep" / "trials").glob("*"):
            if not (path / "claim").is_symlink():
                (path / "claim").symlink_to("9")
    scripts = {path.read_text().split("train.py ")[1] for path in (tmp_path / "digits.sweep/trials").glob("*/job.sh")}
    assert len(scripts) == 10


@optuna_is_needed
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_searches_with_different_seeds_share_no_point(tmp_path: Path, slurm: Path, sampler: str) -> None:
    tried = []
    for seed in (0, 1):
        trials = tmp_path / f"seed-{seed}.sweep" / "trials"
        path = written(tmp_path, name=f"seed-{seed}", seed=seed, sampler=sampler, parallel=1)
        for number in range(4):
            assert run(path).exit_code == 0
            tried.append((trials / f"{number}/job.sh").read_text().split("train.py ")[1])
            (trials / f"{number}/claim").symlink_to("9")
    assert len(set(tried)) == len(tried) == 8


@optuna_is_needed
def test_another_space_is_another_search(tmp_path: Path, slurm: Path) -> None:
    run(written(tmp_path))
    done = run(written(tmp_path, space={"lr": {"low": 1.0, "high": 2.0}}))
    assert "was created: space; choose another name" in str(done.exception)
    both = {"lr": {"low": 1e-4, "high": 1.0, "log": True}, "opt": {"values": ["a", "b"]}}
    assert run(written(tmp_path, name="two", space=both)).exit_code == 0
    turned = {**GOOD, "name": "two", "space": dict(reversed(both.items()))}
    (tmp_path / "turned.yaml").write_text(yaml.safe_dump(turned, sort_keys=False))
    assert run(tmp_path / "turned.yaml").exit_code == 0
    assert run(written(tmp_path, parallel=5, budget={"trials": 20})).exit_code == 0


@optuna_is_needed
def test_another_command_takes_over_with_a_word(tmp_path: Path, slurm: Path) -> None:
    """As where a file was copied, and its name not changed; or where the command was mended."""
    small = written(tmp_path, command=["python", "train.py", "--model=small"], parallel=1)
    assert run(small).stderr == ""
    large = tmp_path / "large.yaml"
    large.write_text(small.read_text().replace("small", "large"))
    all_are_over(small)
    told = run(large).stderr
    assert f"{large}: command differs from that of the 1 trials before" in told
    assert "another name keeps them apart" in told
    assert run(large).stderr == ""
    (tmp_path / "digits.sweep" / "sweep.yaml").write_text("command: {}\n")
    assert run(small).stderr == "", "nothing is known of what a former release kept in another way"


@optuna_is_needed
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("uid", "user"), [(2, "bin"), (54_321, "54321")])
def test_root_does_not_run_the_search_of_a_user(tmp_path: Path, slurm: Path, uid: int, user: str) -> None:
    path = written(tmp_path, parallel=1)
    assert run(path).exit_code == 0
    os.chown(tmp_path / "digits.sweep" / "lock", uid, uid)
    before = len(calls(slurm))
    done = run(path)
    assert isinstance(done.exception, ExplschedError)
    assert str(done.exception) == f"{tmp_path}/digits.sweep is the search of user {user}: run it as {user}"
    assert len(calls(slurm)) == before


@optuna_is_needed
def test_a_copy_of_a_search_is_refused_and_one_that_was_moved_goes_on(tmp_path: Path, slurm: Path) -> None:
    original, other = tmp_path / "original", tmp_path / "other"
    original.mkdir()
    other.mkdir()
    assert run(written(original)).exit_code == 0
    shutil.copytree(original / "digits.sweep", other / "digits.sweep", symlinks=True)
    done = run(written(other))
    assert f"{other}/digits.sweep is a copy of {original}/digits.sweep, another search" in str(done.exception)
    assert run(written(original)).exit_code == 0
    shutil.rmtree(original)
    assert run(written(other)).exit_code == 0
    (other / "digits.sweep").rename(other / "more.sweep")
    assert "more.sweep is a copy of" in str(run(written(other, name="more")).exception)


@optuna_is_needed
def test_a_directory_that_cannot_be_written_is_named_and_nothing_is_lost(tmp_path: Path, slurm: Path) -> None:
    path, trials = written(tmp_path, parallel=2), tmp_path / "digits.sweep" / "trials"
    trials.parent.mkdir()
    trials.touch()
    done = run(path)
    assert isinstance(done.exception, ExplschedError)
    assert f"{path}: {trials}/0: Not a directory" in str(done.exception)
    trials.unlink()
    assert json.loads(run(path, "--json").stdout)["under_way"] == 2
    assert [name for name, _when in jobs_of(slurm)] == ["digits-0", "digits-next", "digits-1", "digits-next"]


GRID = {"lr": {"values": [0.1, 0.2]}, "opt": {"values": ["sgd", "adam"]}}


def tried(path: Path) -> list[str]:
    """Lets pass after pass run the trials of a grid, each of which reports; returns their arguments."""
    for _ in range(6):
        assert run(path).exit_code == 0
        for trial in (path.parent / "digits.sweep/trials").glob("*"):
            if not (trial / "claim").is_symlink():
                (trial / "claim").symlink_to(f"10{trial.name}")
                report = {"time_s": 1.0, "step": 1, "metric": "loss", "value": 0.5}
                (path.parent / f"10{trial.name}.jsonl").write_text(json.dumps(report) + "\n")
    return [script.read_text().split("train.py ")[1] for script in path.parent.glob("digits.sweep/trials/*/job.sh")]


@optuna_is_needed
@pytest.mark.parametrize("parallel", [1, 3, 9])
def test_each_point_of_a_grid_is_tried_once(tmp_path: Path, slurm: Path, parallel: int) -> None:
    found = tried(written(tmp_path, space=GRID, sampler="grid", parallel=parallel, budget={"trials": 99}))
    assert len(found) == len(set(found)) == 4


@optuna_is_needed
def test_a_grid_lacks_no_point_after_a_kill(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is killed between the lines of Optuna's journal: with each further try one line later."""
    from optuna.storages.journal import JournalFileBackend

    path = written(tmp_path, space=GRID, sampler="grid", parallel=1, budget={"trials": 99})
    really = JournalFileBackend.append_logs
    for lines in range(1, 8):
        left = iter(range(lines))

        def append(backend: JournalFileBackend, logs: list[dict[str, Any]], left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            really(backend, logs)

        with monkeypatch.context() as killed:
            killed.setattr(JournalFileBackend, "append_logs", append)
            run(path)
    found = tried(path)
    assert len(found) == len(set(found)) == 4


@optuna_is_needed
def test_a_grid_goes_on_where_another_sampler_was(tmp_path: Path, slurm: Path) -> None:
    tried(written(tmp_path, space=GRID, sampler="random", parallel=1, budget={"trials": 3}))
    found = tried(written(tmp_path, space=GRID, sampler="grid", parallel=4, budget={"trials": 99}))
    assert len(set(found)) == 4
