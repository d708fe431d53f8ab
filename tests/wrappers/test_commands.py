"""sxrun, sxreport and sxbatch as a user calls them."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from explsched.preemption_record import Interruption, PreemptionRecord
from wrappers import follow, output, sxbatch, sxreport
from wrappers.completed import done_at

SXRUN = [sys.executable, "-m", "wrappers.sxrun"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's environment; returns its progress file."""
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(tmp_path / "progress"))
    for name in ("SLURM_RESTART_COUNT", "EXPLSCHED_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "progress"


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("command", ["sxbatch", "sxrun", "sxreport"])
def test_a_command_tells_the_installed_release(command: str) -> None:
    told = subprocess.run([sys.executable, "-m", f"wrappers.{command}", "--version"], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, f"{command} {version('explsched')}\n")


@pytest.mark.parametrize(
    ("command", "status"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["/no/such"], 127)],
)
def test_sxrun_ends_as_its_command(job: Path, command: list[str], status: int) -> None:
    assert subprocess.run([*SXRUN, "--", *command], check=False).returncode == status


def test_sxrun_tells_start_and_end(job: Path) -> None:
    subprocess.run([*SXRUN, "true"], check=True)
    assert [entry["event"] for entry in entries(job)] == ["start", "end"]


def test_sxrun_tells_the_parameters_on_the_command_line(job: Path) -> None:
    subprocess.run([*SXRUN, "--", "true", "--lr=0.1", "--amp=true", "--data", "/d", "--hf-token=x"], check=True)
    assert [entry["params"] for entry in entries(job) if "params" in entry] == [{"lr": 0.1, "amp": True}]


def test_a_command_that_cannot_be_started_is_the_end_of_the_job(job: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    assert subprocess.run([*SXRUN, "/no/such"], check=False).returncode == 127
    assert subprocess.run([*SXRUN, str(tmp_path / "data")], check=False).returncode == 126
    assert [entry["event"] for entry in entries(job)] == 2 * ["start", "end"]
    assert [entry["status"] for entry in entries(job) if entry["event"] == "end"] == [127, 126]


ENDED = [
    {"time_s": 100.0, "event": "start", "command": "digest"},
    {"time_s": 150.0, "step": 9, "metric": "loss", "value": 1.0, "total_steps": 10},
    {"time_s": 160.0, "event": "end", "status": 0},
]


def slurm_says(directory: Path, monkeypatch: pytest.MonkeyPatch, admin_comment: str) -> None:
    """A scontrol that shows a job with this comment of the admin's."""
    (directory / "scontrol").write_text(f"#!/bin/sh\necho 'JobId=5'\necho '   AdminComment={admin_comment}'\n")
    (directory / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")


def comment_is(directory: Path, monkeypatch: pytest.MonkeyPatch, comment: str) -> None:
    """A job that sbatch was given this comment for, and no variable. Its scontrol notes that it was asked."""
    shown = f"JobId=4 ArrayJobId=5\n   Comment=explsched:checkpoint=HUP\n\nJobId=5 ArrayJobId=5\n   Comment={comment}\n"
    (directory / "shown").write_text(shown)
    (directory / "scontrol").write_text(f"#!/bin/sh\necho asked >> {directory}/asked\ncat {directory}/shown\n")
    (directory / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    for name in [name for name in os.environ if name.startswith("EXPLSCHED_") and not name.endswith("_FILE")]:
        monkeypatch.delenv(name)


OPTIONS_OF_JOB = "echo $EXPLSCHED_CHECKPOINT $EXPLSCHED_METRIC"


def test_a_comment_alone_tells_the_command_its_options(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comment_is(tmp_path, monkeypatch, "explsched:sweep=s&checkpoint=USR2&metric=accuracy mine")
    regex = ["--log-regex", r"step (?P<step>\d+) acc (?P<value>\S+)"]
    script = f"{OPTIONS_OF_JOB}; echo step 1 acc 0.5; {sys.executable} -m wrappers.sxrun true"
    told = subprocess.check_output([*SXRUN, *regex, "--", "sh", "-c", script], text=True)
    assert told.splitlines()[0] == "USR2 accuracy"
    assert [entry["metric"] for entry in entries(job) if "value" in entry] == ["accuracy"]
    assert (tmp_path / "asked").read_text() == "asked\n", "an sxrun inside is told"
    launcher = [*SXRUN, "--signals-only", "--", "sh", "-c", OPTIONS_OF_JOB]
    assert subprocess.check_output(launcher, text=True) == "USR2 accuracy\n"
    monkeypatch.setenv("EXPLSCHED_METRIC", "loss")
    assert subprocess.check_output([*SXRUN, "sh", "-c", OPTIONS_OF_JOB], text=True) == "USR2 loss\n"


def test_a_request_while_slurm_is_asked_waits_for_the_command(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comment_is(tmp_path, monkeypatch, "explsched:sweep=s")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nkill -USR1 $PPID\n"))
    script = "trap 'echo saved; exit 0' USR1; while :; do sleep 0.1; done"
    assert subprocess.check_output([*SXRUN, "sh", "-c", script], text=True) == "saved\n"


@pytest.mark.parametrize(
    ("comment", "variables", "told", "said"),
    [
        ("explsched:checkpoint=USR2", {"SLURM_STEP_NUM_TASKS": "2"}, "USR1", ""),  # all tasks would ask
        ("explsched:checkpoint=KILL", {}, "USR1", "sxrun: the job's options are ignored: checkpoint: found 'KILL'"),
        ("mine", {}, "USR1", ""),
        ("explsched:checkpoint=USR2", {"EXPLSCHED_SWEEP": "s"}, "USR1", ""),  # sxbatch had set the others
        ("explsched:checkpoint=USR2", {"PATH": "/nowhere"}, "USR1", ""),
    ],
)
def test_a_comment_of_no_use_does_not_keep_the_command_from_running(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comment: str,
    variables: dict[str, str],
    told: str,
    said: str,
) -> None:
    comment_is(tmp_path, monkeypatch, comment)
    argv = [*SXRUN, "/bin/sh", "-c", OPTIONS_OF_JOB]
    done = subprocess.run(argv, env=os.environ | variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [told]
    assert done.stderr.startswith(said)
    assert bool(done.stderr) is bool(said)


def trained_before(job: Path, lines: list[dict[str, object]]) -> None:
    """The job's progress file of a run of `echo trains` that told these lines."""
    before = os.environ | {"SLURM_RESTART_COUNT": "0"}
    subprocess.run([*SXRUN, "--", "echo", "trains"], env=before, stdout=subprocess.DEVNULL, check=True)
    digest = {"command": entries(job)[0]["command"]}
    job.write_text("".join(json.dumps(line | digest if "command" in line else line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("lines", "record", "runs"),
    [
        (ENDED, "JS1:x explsched-preemption:since=1&n=0&lost=0&p=0%2C155%2C1%2C0%2Cwhy%2C+and&for=0%2C9", False),
        (ENDED, "explsched-preemption:since=1&n=0&lost=0&p=7%2C155%2C1%2C0%2Cwhy", True),  # of another run
        (ENDED, "explsched-preemption:since=1&n=0&lost=0&p=0%2C55%2C1%2C0%2Cwhy", True),  # which came to nothing
        (ENDED, "", True),  # its owner wants it to run again
        (ENDED[:2], "explsched-preemption:since=1&n=0&lost=0&p=0%2C155%2C1%2C0%2Cwhy", True),
    ],
)
def test_a_run_whose_work_was_done_when_it_was_requeued_is_not_repeated(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[dict[str, object]],
    record: str,
    *,
    runs: bool,
) -> None:
    slurm_says(tmp_path, monkeypatch, record)
    trained_before(job, lines)
    ran = subprocess.run([*SXRUN, "--", "echo", "trains"], capture_output=True, text=True, check=True)
    assert (ran.stdout == "trains\n") is runs
    assert ("had done its work" in ran.stderr) is not runs
    assert [entry["event"] for entry in entries(job)[len(lines) :]] == ["start", "end"]
    again = subprocess.run([*SXRUN, "--", "echo", "then"], capture_output=True, text=True, check=True)
    assert again.stdout == "then\n"  # a script's next command is not taken for it


def in_run(number: int, script: str) -> list[str]:
    """What a script prints in this run of its job; `$training` reports its last step and prints what it is called."""
    report = f"{sys.executable} -m wrappers.sxreport --step 9 --total-steps 10 --loss 1"
    functions = f"""sxrun() {{ {sys.executable} -m wrappers.sxrun "$@"; }}; export -f sxrun\n"""
    environment = os.environ | {"SLURM_RESTART_COUNT": str(number), "training": f"{report}; echo $0"}
    argv = ["bash", "-e", "-c", functions + script]
    return subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


REQUEUED = PreemptionRecord(1.0).plus(Interruption(0, 9_999_999_999.0, 1, 0.0, "why")).text()  # sxrun reads it itself


@pytest.mark.parametrize(
    ("began", "again", "ran"),
    [
        ('sxrun true; sxrun bash -c "$training" trains', "; sxrun echo tests", ["tests"]),
        ("""sxrun bash -c 'sxrun bash -c "$training" trains'""", "; sxrun echo tests", ["tests"]),  # nested
        ('sxrun bash -c "$training" one', '; for n in two six; do sxrun bash -c "$training" $n; done', ["two", "six"]),
        # Which of two was done? Nor is what they need left out.
        ('sxrun echo stages; for n in 1 2; do n=$n sxrun bash -c "$training"; done', "", ["stages", "bash", "bash"]),
    ],
)
def test_each_command_that_a_run_whose_work_was_done_began_is_left_out(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str, again: str, ran: list[str]
) -> None:
    """As after one that stages data; but those to which the run did not come are run."""
    slurm_says(tmp_path, monkeypatch, REQUEUED)
    in_run(0, began)
    assert in_run(1, began + again) == ran


@pytest.mark.parametrize("script", ['sxrun bash -c "$training" {}', 'cd {}; sxrun bash -c "$training" trains'])
def test_pieces_that_a_script_has_still_to_do_are_not_left_out(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """It skips what it did itself: the next run begins with what the one before did not come to."""
    slurm_says(tmp_path, monkeypatch, REQUEUED)
    pieces = [tmp_path / name for name in "abcde"]
    for piece in pieces:
        piece.mkdir()
    done, left = (["; ".join(script.format(piece) for piece in some)] for some in (pieces[:3], pieces[3:]))
    assert len(in_run(0, *done)) == 3
    assert len(in_run(1, *left)) == 2


def test_a_run_of_a_former_release_which_told_no_commands_is_repeated(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(tmp_path, monkeypatch, REQUEUED)
    in_run(0, 'sxrun bash -c "$training" trains')
    told = [{name: value for name, value in line.items() if name != "command"} for line in entries(job)]
    job.write_text("".join(json.dumps(line) + "\n" for line in told))
    assert in_run(1, 'sxrun bash -c "$training" trains') == ["trains"]


def test_what_slurm_tells_of_another_task_of_its_array_is_not_the_jobs(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the id of an array, which its last task has, too, scontrol shows all tasks."""
    slurm_says(tmp_path, monkeypatch, "")
    record = "explsched-preemption:since=1&n=0&lost=0&p=0%2C155%2C1%2C0%2Cwhy"
    others = f"echo 'JobId=55 ArrayJobId=5'\necho '   AdminComment={record}'\n"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{others}echo\necho 'JobId=5 ArrayJobId=5'\n{others}")
    trained_before(job, ENDED)
    assert subprocess.run([*SXRUN, "--", "echo", "trains"], capture_output=True, check=True).stdout == b"trains\n"


def test_a_job_whose_name_is_no_utf_8_runs_again(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm keeps the bytes that sbatch was given, and scontrol shows them."""
    slurm_says(tmp_path, monkeypatch, "")
    (tmp_path / "scontrol").write_bytes(b"#!/bin/sh\necho 'JobId=5 JobName=Gr\xf6\xdfe'\n")
    trained_before(job, ENDED)
    assert subprocess.run([*SXRUN, "--", "echo", "trains"], capture_output=True, check=True).stdout == b"trains\n"


@pytest.mark.parametrize(
    "lines",
    [
        [ENDED[0], *ENDED],  # of two tasks one runs on
        [ENDED[0], {**ENDED[1], "step": 4}, ENDED[2]],  # asked to go, it saved and went
        [ENDED[0], {**ENDED[1], "total_steps": None}, ENDED[2]],
        [ENDED[0], {**ENDED[1], "step": "9"}, ENDED[2]],
        [*ENDED[:2], {"time_s": 160.0, "event": "end", "status": 1}],
        [*ENDED[:2], {"time_s": 160.0, "event": "end"}],  # told to end
        [*ENDED, {**ENDED[0], "restart": 1}],
        [*ENDED, {**ENDED[0], "restart": 1, "command": "another"}],
        [*ENDED, {**ENDED[1], "restart": 1}],
    ],
)
def test_a_run_is_done_only_if_all_that_it_began_has_ended_well_at_the_last_step(
    lines: list[dict[str, object]],
) -> None:
    written = [b"torn", b"[]", b"[" * 100_000, *(json.dumps(line).encode() for line in lines)]
    assert done_at(written, 0, "digest") is None
    assert done_at([json.dumps(line).encode() for line in ENDED], 0, "digest") == 160.0


def test_a_command_that_was_told_to_end_has_not_done_its_work(job: Path, tmp_path: Path) -> None:
    """It may have saved, and go on in its next run."""
    script = f"trap 'exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done"
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", script])
    while not (tmp_path / "ready").exists():
        time.sleep(0.02)
    running.terminate()
    assert running.wait(timeout=60) == 0
    assert "status" not in entries(job)[-1]


def test_steps_of_an_elastic_job_get_its_present_size(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"EXPLSCHED_ELASTIC": "1-8", "SLURM_GPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "2"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    argv = [*SXRUN, "sh", "-c", "echo $SLURM_GPUS_PER_NODE"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "2\n"


def test_the_command_is_told_where_to_report_and_what_asks_for_a_checkpoint(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*SXRUN, "sh", "-c", "echo $EXPLSCHED_SPOOL $EXPLSCHED_CHECKPOINT"]
    monkeypatch.delenv("EXPLSCHED_SPOOL", raising=False)
    assert subprocess.check_output(argv, text=True) == "/var/spool/explsched/progress USR1\n"
    monkeypatch.setenv("EXPLSCHED_SPOOL", "/scratch/spool")
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "USR2")
    assert subprocess.check_output(argv, text=True) == "/scratch/spool USR2\n"


def test_a_run_ended_by_a_signal_is_not_the_end_of_the_job(job: Path) -> None:
    subprocess.run([*SXRUN, "sh", "-c", "kill -TERM $$"], check=False)
    assert [entry["event"] for entry in entries(job)] == ["start"]


def test_an_sxrun_for_signals_only_tells_nothing_and_returns_the_commands_status(job: Path) -> None:
    for script, status in (("exit 3", 3), ("kill -TERM $$", 128 + 15)):
        argv = [*SXRUN, "--signals-only", "--", "sh", "-c", script, "sh", "--lr=0.1"]
        assert subprocess.run(argv, check=False).returncode == status
    assert subprocess.run([*SXRUN, "--signals-only", "/no/such/command"], check=False).returncode == 127
    assert not job.exists()
    refused = subprocess.run([*SXRUN, "--signals-only", "--mps", "true"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "no use for other options" in refused.stderr) == (2, True)


def test_sxrun_runs_the_command_though_nothing_can_be_reported(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", "/no/such/place")
    done = subprocess.run([*SXRUN, "echo", "hello"], capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"
    assert "progress is not reported" in done.stderr


def test_sxrun_reads_progress_from_the_log(job: Path) -> None:
    script = "echo step 1 loss 0.5; echo noise; echo step 2 loss nan; echo step 3 loss oops; printf 'step 4 loss 0.4'"
    regex = r"step (?P<step>\d+) loss (?P<loss>\S+)"
    argv = [*SXRUN, "--log-regex", regex, "--total-steps", "9", "--", "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 4
    assert done.stdout.endswith("step 4 loss 0.4")
    found = [(e["step"], e["value"]) for e in entries(job) if "step" in e]
    assert found == [(1, 0.5), (2, None), (4, 0.4)]
    assert "no progress in" in done.stderr


def test_of_several_tasks_of_a_step_the_first_ones_log_is_read(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may print the loss of its own part of a batch, or nothing."""
    argv = [*SXRUN, "--log-regex", r"step (?P<step>\d+) loss (?P<loss>\S+)", "--", "sh", "-c"]
    for task, script in (("1", "echo step 1 loss 1.5"), ("2", "true"), ("0", "echo step 1 loss 0.5")):
        monkeypatch.setenv("SLURM_PROCID", task)
        done = subprocess.run([*argv, script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
    assert [(entry["step"], entry["value"]) for entry in entries(job) if "value" in entry] == [(1, 0.5)]


WAITS = """
import os, pathlib, sys, time
path, until_s = pathlib.Path(os.environ["EXPLSCHED_PROGRESS_FILE"]), time.monotonic() + 20
print("step 1 loss 0.5")
while '"value": 0.5' not in path.read_text() and time.monotonic() < until_s:
    time.sleep(0.05)
sys.exit('"value": 0.5' not in path.read_text())
"""


def test_a_line_that_python_prints_is_reported_while_it_runs(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    argv = [*SXRUN, "--log-regex", r"step (?P<step>\d+) loss (?P<loss>\S+)", "--", sys.executable, "-c", WAITS]
    assert subprocess.run(argv, check=False).returncode == 0


def test_jobs_that_a_command_submits_buffer_their_output(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = "import os; from wrappers.inherited import for_submission as f; print(f(os.environ).get('PYTHONUNBUFFERED'))"
    argv = [*SXRUN, "--log-regex", r"(?P<step>\d+) (?P<loss>\S+)", "--", sys.executable, "-c", code]
    assert subprocess.check_output(argv, text=True) == "None\n"
    monkeypatch.setenv("PYTHONUNBUFFERED", "yes")  # the user's own
    assert subprocess.check_output(argv, text=True) == "yes\n"


def test_a_command_that_tells_no_progress_where_it_is_sought_is_said(job: Path, tmp_path: Path) -> None:
    def said(*options: str) -> str:
        return subprocess.run([*SXRUN, *options, "--", "echo", "x"], capture_output=True, text=True, check=True).stderr

    assert f"no progress was found in {tmp_path}/m.csv: " in said("--follow", f"{tmp_path}/m.csv")
    assert f"no progress was found in {tmp_path}: " in said("--follow", f"{tmp_path}/")
    assert "no progress was found in what the command printed on standard output: " in said(
        "--log-regex", r"(?P<step>\d+) (?P<loss>\d)"
    )
    assert said() == ""


def test_a_full_disk_does_not_hold_up_the_command(job: Path) -> None:
    script = "for i in 1 2 3; do echo step $i loss 0.$i; done; seq 1 100000; echo step 4 loss 0.4"
    argv = [*SXRUN, "--log-regex", r"step (?P<step>\d+) loss (?P<loss>\S+)", "--", "sh", "-c", script]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "output is lost: No space left on device" in done.stderr
    assert [entry["step"] for entry in entries(job) if "step" in entry] == [1, 2, 3, 4]


def test_a_command_that_makes_the_shared_pipe_non_blocking_loses_no_output(job: Path) -> None:
    code = "import os; os.set_blocking(2, False)\nfor step in range(20000): print(f'step {step} loss 0.5')"
    argv = [*SXRUN, "--log-regex", r"step (?P<step>\d+) loss (?P<loss>\S+)", "--", sys.executable, "-c", code]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    time.sleep(1)  # the pipe is full
    with running.stdout as output:
        assert [line.split()[1] for line in output] == [str(step) for step in range(20000)]
    assert running.wait(timeout=60) == 0


def test_all_that_a_command_has_left_is_passed_on_however_long_that_takes(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: each line takes a while, all of them longer than we wait for a silent command."""
    monkeypatch.setattr(output, "LAST_OUTPUT_S", 0.1)
    told: list[bytes] = []

    def slowly(line: bytes) -> None:
        time.sleep(0.05)
        told.append(line)

    reporter = follow.Reporter(slowly, "sxrun")
    lines = [b"%d" % n for n in range(20)]
    fed = partial(reporter.feed, b"\n".join(lines) + b"\n")
    output.Follower(reporter, fed, lambda: None).finish()
    assert told == lines


def test_what_nobody_takes_is_said_to_be_lost(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LAST_OUTPUT_S", 0.1)
    taken = threading.Event()

    def waits() -> None:
        taken.wait()

    output.Follower(follow.Reporter(lambda _: None, "sxrun"), waits, lambda: None).finish()
    taken.set()
    assert "is lost" in capsys.readouterr().err


def wait_for(path: Path, text: str) -> None:
    for _ in range(500):
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} never came to {path}")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU])
def test_sxrun_passes_signals_on(job: Path, tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    code = (
        f"import signal,sys,time\nlog=open({str(log)!r},'ab',buffering=0)\n"
        f"signal.signal({int(number)}, lambda *_: (log.write(b'caught\\n'), sys.exit(3)))\n"
        "log.write(b'ready\\n')\ntime.sleep(60)"
    )
    running = subprocess.Popen([*SXRUN, "--", sys.executable, "-c", code])
    wait_for(log, "ready")
    running.send_signal(number)
    assert running.wait(timeout=60) == 3
    wait_for(log, "caught")


def test_an_early_checkpoint_signal_does_not_end_the_command(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = subprocess.Popen([*SXRUN, "--", "sh", "-c", f"echo ready > {log}; sleep 1; echo done >> {log}"])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 0
    wait_for(log, "done")


def test_sxreport(job: Path) -> None:
    assert sxreport.main(["--step", "4", "--loss", "0.5", "--metric", "acc=0.9", "--total-steps", "8"]) == 0
    assert {e["metric"]: e["value"] for e in entries(job)} == {"acc": 0.9, "loss": 0.5}


@pytest.mark.parametrize(
    ("word", "value", "bad"), [("-1e-05", -1e-05, None), ("-0.5", -0.5, None), ("-inf", None, "-inf")]
)
def test_sxreport_takes_negative_values_in_any_form(job: Path, word: str, value: float | None, bad: str | None) -> None:
    assert sxreport.main(["--step", "4", "--loss", word, "--total-steps", "8"]) == 0
    (entry,) = entries(job)
    assert (entry["value"], entry.get("bad")) == (value, bad)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--step", "1"], ["--step", "-1", "--loss", "1"], ["--metric", "x"], ["--loss", "--step", "1"]],
)
def test_sxreport_refuses_nonsense(job: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sxreport.main(arguments)
    assert caught.value.code == 2


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that records its arguments, one a line, instead of submitting; returns the record."""
    record = tmp_path / "record"
    program = tmp_path / "sbatch"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {record}\nexit 5\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith(("SXBATCH_", "EXPLSCHED_"))]:
        monkeypatch.delenv(name)
    return record


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n#SXBATCH --sweep=fromscript --metric=acc\ntrue\n")
    return str(path)


@pytest.mark.parametrize(("most", "is_told"), [("3", True), ("4", False), ("(null)", False)])
def test_a_grid_with_more_tasks_than_the_site_takes_says_so(
    sbatch: Path, capfd: pytest.CaptureFixture[str], most: str, *, is_told: bool
) -> None:
    scontrol = sbatch.with_name("scontrol")
    scontrol.write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && echo "MaxArraySize            = {most}"\n')
    scontrol.chmod(0o755)
    grid = [word for pair in ("lr=1,2", "width=1,2") for word in ("--param-grid", pair)]
    assert sxbatch.main(["--template", "sweep", *grid, "--array-limit", "1", "--", "true"]) == 5
    told = "sxbatch: the grid has 4 tasks, and MaxArraySize of this site is 3: split the grid, or use `sexplsched "
    assert capfd.readouterr().err.startswith(told) is is_told


def test_foreign_options_and_the_exit_status_pass_through(sbatch: Path, script: str) -> None:
    words = ["--sweep=s", "-o", script, "--gres", "gpu:1", "--parsable", script, "--sweep", "of the script"]
    assert sxbatch.main(words) == 5
    expected = ["--comment=explsched:sweep=s&metric=acc", *words[1:]]
    assert sbatch.read_text().splitlines() == expected


def test_command_line_over_environment_over_script(sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sxbatch.main([script])
    assert "sweep=fromscript" in sbatch.read_text()
    monkeypatch.setenv("EXPLSCHED_SWEEP", "fromenv")
    sxbatch.main([script])
    assert "sweep=fromenv&metric=acc" in sbatch.read_text()
    sxbatch.main(["--sweep", "given", script])
    assert "sweep=given" in sbatch.read_text()


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (["--lr=0.010", "--data=/secret/plans", "--opt", "adam", "--token=abc"], "lr%3D0.01%2Copt%3Dadam"),
        (["--data=/secret/plans", "train"], None),
        (["--tags=a,b"], None),
        ([f"--p{n}={n}" for n in range(1000)], None),  # more than a comment takes
    ],
)
def test_the_scripts_arguments_tell_a_sweeps_hyper_parameters_before_it_runs(
    sbatch: Path, script: str, words: list[str], params: str | None
) -> None:
    told = f"explsched:sweep=s&metric=acc{f'&params={params}' if params else ''}"
    sxbatch.main(["--sweep=s", script, *words])
    assert sbatch.read_text().splitlines() == [f"--comment={told}", script, *words]
    sxbatch.main(["--sweep=s", "--params=lr=3", script, *words])
    assert "params=lr%3D3" in sbatch.read_text().splitlines()[0]


def test_the_users_comment_is_kept(sbatch: Path, script: str) -> None:
    sxbatch.main(["--comment", "my own", "--early-stop", script])
    assert sbatch.read_text().splitlines()[0].endswith("&early-stop=1 my own")


def test_a_checkpoint_signal_means_requeue(sbatch: Path, script: str) -> None:
    sxbatch.main(["--checkpoint", "USR2", script])
    assert "--requeue" in sbatch.read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "variable", "line", "added"),
    [
        ([], "", "", ["--open-mode=append"]),
        (["--open-mode=truncate"], "", "", []),
        (["--open", "truncate"], "", "", []),
        ([], "truncate", "", []),
        ([], "", "#SBATCH --open-mode=truncate\n", []),
    ],
)
def test_what_earlier_runs_printed_is_kept_unless_told_otherwise(
    sbatch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    variable: str,
    line: str,
    added: list[str],
) -> None:
    """Slurm empties the output file of a job that it starts again."""
    script = tmp_path / "long.sh"
    script.write_text(f"#!/bin/sh\n{line}")
    if variable:
        monkeypatch.setenv("SBATCH_OPEN_MODE", variable)
    sxbatch.main(["--checkpoint=USR1", *words, str(script)])
    comment = "--comment=explsched:checkpoint=USR1"
    assert sbatch.read_text().splitlines() == [comment, "--requeue", *added, *words, str(script)]


def test_dry_run_submits_nothing(sbatch: Path, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sxbatch.main(["--dry-run", "--early-stop", script]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(f"&early-stop=1' {script}")
    assert shown.partition("\n")[2] == Path(script).read_text()
    assert not sbatch.exists()


def test_parameters_without_a_template_are_refused(capsys: pytest.CaptureFixture[str], script: str) -> None:
    assert sxbatch.main(["--param", "gpus=1", script]) == 2
    assert "need --template" in capsys.readouterr().err


@pytest.mark.parametrize("values", ["", "0.1,", "0.1,0.1"])
def test_a_grid_of_empty_or_equal_values_is_refused(capsys: pytest.CaptureFixture[str], values: str) -> None:
    assert sxbatch.main(["--template", "sweep", "--param-grid", f"lr={values}", "--dry-run", "--", "true"]) == 2
    assert "accepted are different values, none empty" in capsys.readouterr().err


@pytest.mark.parametrize(("sweep", "name"), [("größe/你好 1", "'größe-你好-1'"), ('$(x)"', "-x-")])
def test_a_jobs_name_takes_what_a_template_accepts_of_the_sweeps(
    capsys: pytest.CaptureFixture[str], sweep: str, name: str
) -> None:
    assert sxbatch.main(["--sweep", sweep, "--template", "sweep", "--dry-run", "--json", "--", "true"]) == 0
    assert f"#SBATCH --job-name={name}\n" in json.loads(capsys.readouterr().out)["script"]


@pytest.mark.parametrize("name", ["torchrun", "deepspeed", "horovod"])
def test_a_signal_that_srun_does_not_pass_on_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = ["--dry-run", "--template", name, "--", "train.py"]
    assert sxbatch.main(["--checkpoint=TERM", *words]) == 2
    assert f"--checkpoint TERM: template '{name}' passes on USR1 and USR2 alone" in capsys.readouterr().err
    assert sxbatch.main(["--checkpoint=USR2", *words]) == sxbatch.main(words) == 0


def test_a_hostile_name_in_a_template_is_refused(sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sxbatch.main(["--param", "name=$(x)", "--template", "sweep", "--", "true"]) == 2
    assert "parameter name='$(x)'" in capsys.readouterr().err
    assert not sbatch.exists()
