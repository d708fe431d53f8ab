"""What sxrun, or a training without it, says of the job's batch script, which is sent the checkpoint signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SXRUN = f"{sys.executable} -m wrappers.sxrun --"
REPORT = "explsched.report(step=1, loss=0.5); explsched.report(step=2, loss=0.4)"
LISTEN = f"with explsched.CheckpointSignal(): {REPORT}"
BOTH = f"{REPORT}\n{LISTEN}"
TWO = f'with explsched.CheckpointSignal(), explsched.CheckpointSignal("TERM"): {REPORT}'
NAMES = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_TASK_PID")


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(tmp_path / "progress"))
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "USR1")


def told(tmp_path: Path, *command: str) -> tuple[list[object], int]:
    """What the progress file says of the script, None for a start without that, and how often the user was warned."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert all(line.keys() & {"event", "params", "step"} for line in lines)  # which each daemon knows
    said = [line.get("script_dies") for line in lines if line.get("event") == "start" or "script_dies" in line]
    return said, done.stderr.count("USR1 would kill")


@pytest.mark.parametrize(
    ("script", "dies"),
    [
        (f"{SXRUN} true\ntrue", [True]),
        (f"#SXBATCH --checkpoint=USR1\ntrap true EXIT\n{SXRUN} true", [True]),
        (f"{SXRUN} true | cat", [True]),
        (f"{SXRUN} true &\nwait", [True]),
        (f"{SXRUN} bash -c '{SXRUN} true; true'\ntrue", [True, True]),
        (f"exec {SXRUN} true", [False]),
        (f"exec {SXRUN} bash -c '{SXRUN} true; {SXRUN} true'", [False, False, False]),
        (f"trap true USR1\n{SXRUN} true", [False]),
        (f"trap true EXIT USR1\n{SXRUN} true", [False]),
        (f"trap '' USR1\n{SXRUN} true\ntrue", [False]),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_script_that_the_signal_would_kill_is_told(tmp_path: Path, shell: str, script: str, dies: list[bool]) -> None:
    """Slurm sends it to the script alone, and the job of a script that dies is not requeued, but failed."""
    (tmp_path / "script").write_text(f"export SLURM_TASK_PID=$$\n{script}\n")
    assert told(tmp_path, shell, str(tmp_path / "script")) == (dies, sum(dies))


@pytest.mark.parametrize("name", ["USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG"])
@pytest.mark.parametrize(("script", "dies"), [(f"exec {SXRUN} true", False), (f"{SXRUN} true\ntrue", True)])
def test_any_signal_is_judged_by_what_it_would_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    script: str,
    dies: bool,  # noqa: FBT001
) -> None:
    """A bash that waits for a command catches INT and ignores QUIT, of its own accord."""
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", name)
    (tmp_path / "script").write_text(f"export SLURM_TASK_PID=$$\n{script}\n")
    assert told(tmp_path, "bash", str(tmp_path / "script"))[0] == [dies and name not in ("INT", "QUIT", "URG")]


@pytest.mark.parametrize(("task", "dies"), [(0, [True]), (1, [None])])
def test_the_first_task_of_a_step_looks_for_the_script(tmp_path: Path, task: int, dies: list[object]) -> None:
    """It has Slurm's process above it. (A shell by its name: the true one waits for a cluster.)"""
    of_step = f"SLURM_JOB_ID={os.getpid()} SLURM_STEP_ID=0 SLURM_PROCID={task}"
    script = f"sh -c '{of_step} {SXRUN} true; true'; true"
    slurm = f'exec -a "slurmstepd: [{os.getpid()}.batch]" bash -c "$0"'
    assert told(tmp_path, "bash", "-c", slurm, script) == (dies, any(dies))


def test_nothing_is_said_of_a_job_that_does_not_allow_preemption_or_a_script_that_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script").write_text(f"SLURM_TASK_PID={2**22 + 1} {SXRUN} true\ntrue")
    assert told(tmp_path, "sh", str(tmp_path / "script")) == ([None], 0)
    (tmp_path / "progress").unlink()
    monkeypatch.delenv("EXPLSCHED_CHECKPOINT")
    (tmp_path / "script").write_text(f"SLURM_TASK_PID=$$ {SXRUN} true\ntrue")
    assert told(tmp_path, "sh", str(tmp_path / "script")) == ([None], 0)


def training(code: str) -> str:
    """A command that runs the code, in a shell."""
    return f"{sys.executable} -c 'import explsched\n{code}'"


@pytest.mark.parametrize(
    ("script", "dies"),
    [
        (f"{training(REPORT)}\ntrue", [True]),
        (f"{training(LISTEN)}\ntrue", [True]),
        (f"{training(LISTEN)} & wait", [True]),
        (f"exec {training(LISTEN)}", [False]),
        (f"trap true USR1\n{training(LISTEN)}\ntrue", [False]),
        (f"trap true USR2\n{training(REPORT)}\ntrue", [True]),
        (f"trap true USR1\n{training(TWO)}\ntrue", [False]),
        (f"trap true TERM\n{training(TWO)}\ntrue", [True]),
        (f"for i in 1 2 3; do {training(REPORT)}; done\ntrue", [True]),
        (f"{training(REPORT)}\ntrap true USR1\n{training(LISTEN)}\ntrue", [True, False]),
        (f"{training(REPORT)}\nexec {training(LISTEN)}", [True, False]),
        (f"{SXRUN} {training(LISTEN)}\ntrue", [True]),
        (f"exec {SXRUN} {training(LISTEN)}", [False]),
    ],
)
def test_a_training_tells_of_its_script_where_no_sxrun_does(tmp_path: Path, script: str, dies: list[bool]) -> None:
    """As where a tool writes the script. The signal is the job's, also where the training listens for another, too."""
    (tmp_path / "script").write_text(f"export SLURM_TASK_PID=$$ SLURM_JOB_ID=5\n{script}\n")
    assert told(tmp_path, "bash", str(tmp_path / "script")) == (dies, sum(dies))


def test_a_signal_that_ends_nothing_kills_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "URG")
    (tmp_path / "script").write_text(f"export SLURM_TASK_PID=$$ SLURM_JOB_ID=5\n{training(REPORT)}\ntrue\n")
    assert told(tmp_path, "bash", str(tmp_path / "script")) == ([False], 0)


def test_what_another_run_has_told_of_the_script_is_told_again(tmp_path: Path) -> None:
    """Its lines may have been cut, or others may have written them."""
    lines = '{"restart": 0, "script_dies": true}\n{"params": {"script_dies": 1}}\n{"restart": 1, "script_dies": tr\n'
    (tmp_path / "before").write_text(lines)
    of_run = f"export SLURM_TASK_PID=$$ SLURM_JOB_ID=5 SLURM_RESTART_COUNT=1; cp {tmp_path}/before {tmp_path}/progress"
    (tmp_path / "script").write_text(f"{of_run}\n{training(REPORT)}\nsed -i 1,3d {tmp_path}/progress\n")
    assert told(tmp_path, "bash", str(tmp_path / "script")) == ([True], 1)


@pytest.mark.parametrize(
    ("script", "dies"),
    [
        (f"{training(LISTEN)}\ntrue", [True]),
        (f"{training(REPORT)}\ntrue", [True]),
        (f"trap true USR2\n{training(REPORT)}\ntrue", []),
        (f"trap true USR2\n{training(REPORT)}\n{training(LISTEN)}\ntrue", [True]),
        (f"trap true USR2\n{training(BOTH)}\ntrue", [True]),
        (f"trap true USR1\n{training(TWO)}\ntrue", [False]),
    ],
)
def test_a_training_whose_job_is_not_known_to_allow_preemption_warns_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, dies: list[bool]
) -> None:
    """It may have got its options by --comment alone, so it tells, and `explain` does.

    Who only reports does not know which signal will be sent.
    """
    monkeypatch.delenv("EXPLSCHED_CHECKPOINT")
    (tmp_path / "script").write_text(f"export SLURM_TASK_PID=$$ SLURM_JOB_ID=5\n{script}\n")
    assert told(tmp_path, "bash", str(tmp_path / "script")) == (dies, 0)
