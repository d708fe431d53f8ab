"""What commands do when Slurm is slow, missing or strange, and when their input is bad."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from explsched.cli import root
from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.cli.cluster_state import job_number
from slurm_plugin.cli.submit import TaskError, read_task, sbatch_arguments
from slurm_plugin.client import process
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmNode
from slurm_plugin.config import Config
from slurm_plugin.state.published import FILE
from slurm_plugin.state.view import View
from tests.slurm_kit import FakeSlurm
from tests.slurm_plugin.state import JOBS, published
from wrappers.template import SXRUN


def tool(directory: Path, name: str, body: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


def test_a_slow_slurm_is_unreachable() -> None:
    with pytest.raises(SlurmUnreachableError, match="no answer from slurmctld within 0.1 s"):
        process.run(["sleep", "5"], 0.1, process.environment({}))


def test_a_missing_command_names_its_package() -> None:
    with pytest.raises(SlurmError, match="squeeue is not installed.*slurm-client"):
        process.run(["squeeue"], 1, process.environment({}))


def test_a_command_that_may_not_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where PATH, inherited from root, names a directory that this user may not read."""
    (tmp_path / "squeue").touch(mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="squeue is not installed.*slurm-client"):
        process.run(["squeue"], 1, process.environment({}))


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "slurm_load_jobs error: Controller is in standby mode, try a different controller",
    ],
)
def test_a_slurmctld_that_does_not_answer_is_unreachable(tmp_path: Path, words: str) -> None:
    tool(tmp_path, "squeue", f"echo '{words}' >&2; exit 1")
    with pytest.raises(SlurmUnreachableError, match="squeue: slurm_load_jobs error"):
        process.run([f"{tmp_path}/squeue"], 10, {})


def test_a_job_inherits_nothing_of_the_job_we_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    cluster = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CONF_SERVER": "ctl1", "SLURM_JWT": "token"}
    for name, value in (cluster | {"SLURM_MEM_PER_NODE": "100"}).items():
        monkeypatch.setenv(name, value)
    ours = process.environment({})
    given = process.submission(ours)
    kept = {name: value for name, value in given.items() if name.startswith("SLURM_")}
    assert kept == cluster, "what tells where slurmctld is and who asks, and nothing else"
    assert (given["LC_ALL"], ours["LC_ALL"]) == ("de_DE.UTF-8", "C.UTF-8")
    monkeypatch.delenv("LC_ALL")
    assert "LC_ALL" not in process.submission(process.environment({}))


@pytest.mark.parametrize("variable", ["SBATCH_CLUSTERS", "SBATCH_ARRAY_INX", "SBATCH_WAIT"])
def test_a_submission_of_ours_is_one_job_of_this_cluster(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    given = process.submission(process.environment({}))
    assert [name for name in given if name.startswith("SBATCH_")] == ["SBATCH_ACCOUNT"]


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    """Slurm's commands would look for it for a minute, and fail with words about DNS where nothing names one."""
    with pytest.raises(SlurmError, match="squeue: SLURM_CONF names /nowhere/slurm.conf: No such file"):
        process.run(["squeue"], 1, process.environment({"SLURM_CONF": "/nowhere/slurm.conf"}))
    with pytest.raises(SlurmError, match="squeue: SLURM_CONF names /x+: File name too long"):
        process.run(["squeue"], 1, process.environment({"SLURM_CONF": f"/{'x' * 300}"}))
    tool(tmp_path, "squeue", "echo squeue: fatal: Could not establish a configuration source >&2; exit 1")
    with pytest.raises(SlurmError, match="squeue finds no Slurm configuration: no /etc/slurm/slurm.conf"):
        process.run([f"{tmp_path}/squeue"], 1, process.environment({}))


def test_sacct_is_asked_for_no_time_that_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "sacct", 'printf "%s " "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (row,) = CliClient().accounting(("User",), 0.0, 2e9)
    assert "--starttime=uts1000000 --endtime=uts2000000000" in row[0]


def test_an_unknown_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "scontrol", "echo slurm of the future")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SlurmError, match="'slurm of the future' holds no version"):
        CliClient().capabilities()


def test_a_command_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "scontrol", "echo broken conf >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SlurmError, match=r"scontrol failed \(3\): broken conf"):
        CliClient().nodes()


def test_one_unreadable_record_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool(tmp_path, "scontrol", "echo NodeName=n1 nonsense; echo NodeName=n2 Gres=gpu:4 State=IDLE Partitions=a,b")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [(node.name, node.gpus, len(node.partitions)) for node in CliClient().nodes()] == [("n2", 4, 2)]
    assert "record left out" in caplog.text


def test_users_output_settings_do_not_reach_our_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    kept = process.environment({"SLURM_CONF": "/x"})
    assert "SQUEUE_FORMAT" not in kept
    assert (kept["SLURM_TIME_FORMAT"], kept["SLURM_CONF"]) == ("%s", "/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "task.json: .*truncated"),
        ('{"name": "a", "gpus": 1}', "unknown field `gpus`"),
        ('{"name": "a", "required_gpus": -1}', ">= 0.*required_gpus"),
        ('{"name": "a", "required_gpus": "2"}', "Expected `int`, got `str`.*required_gpus"),
        ('{"name": "a\\nb"}', "matching regex.*name"),
        ('{"name": "a\\n"}', "matching regex.*name"),
        ("{}", "missing required field `name`"),
    ],
)
def test_faults_of_a_task_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(text)
    with pytest.raises(TaskError, match=words):
        read_task(path)


def test_a_tasks_parameters_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    params = {"command": ["python", "a b.py"], "lr": 0.1, "note": "$(touch x)"}
    path.write_text(json.dumps({"name": "t", "required_gpus": 2, "params": params}))
    argv, script = sbatch_arguments(read_task(path), "a100")
    assert argv == ["sbatch", "--parsable", "--job-name=t", "--nodes=1", "--gpus-per-node=2", "--constraint=a100"]
    assert script.splitlines()[-1] == f"exec {SXRUN} -- python 'a b.py' --lr=0.1 '--note=$(touch x)'"


SAMPLE = {
    "name": "ResNet50 Training",
    "required_gpus": 2,
    "min_gpu_memory": 8192,
    "params": {"model": "resnet50", "batch_size": "64", "learning_rate": "0.001"},
}
"""As the Go scheduler's own sample is made: parameters as strings, and no command."""


def nodes_with(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    found = [SlurmNode(f"n{i}", "IDLE", 4, frozenset(), features=frozenset({name})) for i, name in enumerate(features)]
    monkeypatch.setattr(CliClient, "nodes", lambda _self: tuple(found))


def submitted(*words: str) -> str:
    return CliRunner().invoke(root, ["submit", "--dry-run", *words], catch_exceptions=False).output


def test_the_go_schedulers_sample_runs_with_a_typed_command_where_gpus_have_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps(SAMPLE))
    nodes_with(monkeypatch, "gpumem4g", "a100-80gb", "vram-24gb")
    out = submitted("--config", str(path), "--", "python", "train.py")
    assert "'--job-name=ResNet50 Training' --nodes=1 --gpus-per-node=2 '--constraint=a100-80gb|vram-24gb'" in out
    assert f"exec {SXRUN} -- python train.py --model=resnet50 --batch_size=64 --learning_rate=0.001" in out
    with pytest.raises(TaskError, match="no command"):
        submitted("--config", str(path))


def test_a_task_may_be_given_by_options_which_come_before_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps(SAMPLE))
    nodes_with(monkeypatch, "a100-80gb")
    assert "--job-name=x --nodes=1 --gpus-per-node=3 --constraint=a100-80gb\n" in submitted(
        "--config", str(path), "--name", "x", "--gpus", "3", "--memory", "40000", "--", "true"
    )
    assert "--job-name=y --nodes=1 --gpus-per-node=1\n" in submitted("--name", "y", "--", "true")
    assert CliRunner().invoke(root, ["submit", "--", "true"]).exit_code == 2


def test_where_only_gpu_types_tell_their_memory_the_smallest_that_suffices_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    types = [frozenset({"h100"}), frozenset({"a100_40gb", "t4"}), frozenset({"tesla"})]
    found = tuple(SlurmNode(f"n{i}", "IDLE", 4, frozenset(), gpu_types=names) for i, names in enumerate(types))
    monkeypatch.setattr(CliClient, "nodes", lambda _self: found)
    two = submitted("--name", "t", "--gpus", "2", "--memory", "20000", "--", "true")
    assert "--nodes=1 --gpus-per-node=a100_40gb:2\n" in two
    assert "--nodes=1 --gpus-per-node=h100:1\n" in submitted("--name", "t", "--memory", "60000", "--", "true")
    with pytest.raises(TaskError, match="largest known has"):
        submitted("--name", "t", "--memory", "90000", "--", "true")


def test_memory_that_no_gpu_is_known_to_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_with(monkeypatch, "gpumem4g")
    with pytest.raises(TaskError, match="largest known has 4096 MiB.*--constraint"):
        submitted("--name", "t", "--memory", "8192", "--", "true")
    nodes_with(monkeypatch, "fast")
    with pytest.raises(TaskError, match="no node has a feature that states"):
        submitted("--name", "t", "--memory", "1", "--", "true")


@pytest.mark.parametrize("command", root.list_commands(click.Context(root)))
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(root, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("word", "near"), [("statsu", "; did you mean 'status'? (known: "), ("frobnicate", " (known: ")]
)
def test_an_unknown_command_is_named_with_what_there_is(word: str, near: str) -> None:
    result = CliRunner().invoke(root, [word])
    assert result.exit_code == 2
    assert f"no command {word!r}{near}admin, audit, " in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    "option", [["-t", "SLEEPING"], ["-o", "colour"], ["-i", "0"], ["-j", "abc"], ["-j", "1,-5"], ["-j", "1_x"]]
)
def test_status_names_what_it_accepts(option: list[str]) -> None:
    result = CliRunner().invoke(root, ["status", *option])
    assert result.exit_code == 2
    assert "accepted are" in result.output or "range" in result.output


def test_a_task_of_an_array_is_found_by_squeues_name_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "squeue", 'case "$*" in *--jobs\\ 39_2\\ *) echo 41 39_2;; *) echo Invalid >&2; exit 1;; esac')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert job_number("39_2") == 41
    with pytest.raises(SlurmError, match="job 39_3: Slurm has no such task, or no longer has it"):
        job_number("39_3")


def test_a_component_is_found_by_squeues_name_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "squeue", 'case "$*" in *--jobs\\ 8\\ *) echo 8 8+0; echo 9 8+1;; *) exit 1;; esac')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (job_number("8+0"), job_number("8+1")) == (8, 9)
    with pytest.raises(SlurmError, match=r"job 8\+2: Slurm has no such component, or no longer has it"):
        job_number("8+2")


def test_a_job_that_is_gone_is_looked_for_in_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = {"time_s": 1, "what": "joined", "job": 7, "user": "ada", "uid": 1, "sweep": "my digits"}
    (tmp_path / "sweeps.jsonl").write_text(json.dumps(note) + "\n")
    (tmp_path / "explsched.yaml").write_text(f"progress: {{spool: {tmp_path}}}")
    monkeypatch.setattr(
        "slurm_plugin.cli.cluster_state.look", lambda _path: View.of(Config(), FakeSlurm([]).look(), 0.0)
    )
    done = CliRunner().invoke(root, ["explain", "7", "--config", str(tmp_path / "explsched.yaml"), "--fresh"])
    assert str(done.exception) == ("job 7 neither waits nor runs; what became of it: sexplsched sweep show 'my digits'")


@pytest.mark.parametrize(
    ("group", "known"),
    [
        ([], "status "),
        (["cluster"], "down "),
        (["config"], "keys "),
        (["kernels"], "refine "),
        (["profile"], "training "),
        (["sweep"], "show "),
        (["trace"], "convert "),
    ],
)
def test_no_first_line_of_help_is_cut(group: list[str], known: str) -> None:
    listing = CliRunner().invoke(root, [*group, "--help"]).output.partition("Commands:")[2].partition("examples:")[0]
    assert known in listing
    assert "..." not in listing


def test_status_goes_on_after_a_look_that_failed(tmp_path: Path) -> None:
    """As squeue does, when slurmctld is restarted and no daemon publishes."""
    _ = published(tmp_path, jobs=JOBS[:2], now_s=time.time())
    config, nothing = tmp_path / "explsched.yaml", tmp_path / "bin"
    config.write_text(json.dumps({"state": {"directory": f"{tmp_path}/state"}}))
    nothing.mkdir()
    argv = [sys.executable, "-m", "explsched.cli", "status", "-i", "1", "-h", "-o", "jobid", "-f", str(config)]
    environment = {**os.environ, "PATH": str(nothing)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline().strip() in {"41", "42"}
        (tmp_path / "state" / FILE).unlink()
        assert any("is not installed" in line for line in watching.stderr), "the look that failed is told"
        _ = published(tmp_path, jobs=JOBS, now_s=time.time())
        assert any(line.strip() == "43" for line in watching.stdout), "and the next one is shown"
        watching.terminate()
