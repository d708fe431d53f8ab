"""Reporting from inside a job: never an error for what is not the training's fault."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from explsched import CheckpointSignal, atomic_write, progress


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXPLSCHED_SPOOL", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.delenv("EXPLSCHED_PROGRESS_FILE", raising=False)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    return tmp_path


def lines(spool: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (spool / "42.jsonl").read_text().splitlines()]


def test_one_line_per_metric(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    progress.report(step=3, total_steps=10, loss=0.5, accuracy=0.25)
    found = lines(spool)
    assert [(entry["metric"], entry["value"]) for entry in found] == [("loss", 0.5), ("accuracy", 0.25)]
    assert all((e["step"], e["total_steps"], e["restart"]) == (3, 10, 2) for e in found)


def test_nan_and_infinity_become_null(spool: Path) -> None:
    progress.report(step=1, loss=float("nan"))
    progress.report(step=2, loss=float("inf"))
    progress.report(step=3, loss=-(10**400))
    assert [(entry["value"], entry["bad"]) for entry in lines(spool)] == [(None, "nan"), (None, "inf"), (None, "-inf")]


def test_calls_that_can_never_be_right_are_errors(spool: Path) -> None:
    with pytest.raises(TypeError, match="at least one metric"):
        progress.report(step=1)
    with pytest.raises(ValueError, match="step"):
        progress.report(step=-1, loss=1.0)
    with pytest.raises(ValueError, match="step"):
        progress.report(step=1.5, loss=1.0)
    with pytest.raises(ValueError, match="total_steps"):
        progress.report(step=1, total_steps=0, loss=1.0)
    for value in ("0.5", True, None, {"train": 0.5}):
        with pytest.raises(TypeError, match="'accuracy' must be a number"):
            progress.report(step=1, accuracy=value)
    with pytest.raises(ValueError, match="257 characters"):
        progress.report(step=1, **{"m" * 257: 1.0})
    with pytest.raises(TypeError, match=r"params must be a mapping .* not \['lr'\]"):
        progress.report(step=1, loss=1.0, params=["lr"])


def test_numbers_of_numpy_are_numbers(spool: Path) -> None:
    numpy = pytest.importorskip("numpy")
    progress.report(step=numpy.int64(4), loss=numpy.float32(0.5), total_steps=numpy.int32(8))
    entry = lines(spool)[0]
    assert (entry["step"], entry["value"], entry["total_steps"]) == (4, 0.5, 8)


def test_the_daemon_can_read_the_file_whatever_the_umask(spool: Path) -> None:
    before = os.umask(0o077)
    try:
        progress.report(step=1, loss=1.0)
    finally:
        os.umask(before)
    assert (spool / "42.jsonl").stat().st_mode & 0o777 == 0o644


def test_the_longest_line_is_one_the_daemon_reads(spool: Path) -> None:
    progress.report(step=10**15, total_steps=10**15, **{"\U0001f600" * 256: 0.1234567890123456})
    assert len((spool / "42.jsonl").read_bytes()) < 4096


def test_an_explicit_file_is_used_outside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(tmp_path / "mine"))
    progress.report(step=1, loss=1.0)
    assert (tmp_path / "mine").exists()


def test_outside_a_job_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("EXPLSCHED_PROGRESS_FILE", raising=False)
    monkeypatch.setenv("EXPLSCHED_SPOOL", str(tmp_path))
    progress.report(step=1, loss=1.0)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("trap", ["missing", "symlink", "foreign", "directory", "fifo"])
def test_what_cannot_be_written_is_said_once_and_never_raised(
    trap: str, spool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spool / "42.jsonl"
    target = spool / "target"
    if trap == "missing":
        monkeypatch.setenv("EXPLSCHED_SPOOL", str(spool / "none"))
    elif trap == "symlink":
        target.touch()
        path.symlink_to(target)
    elif trap == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to somebody else")
        path.touch()
        os.chown(path, 12345, 12345)
    elif trap == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    progress.report(step=1, loss=1.0)
    progress.report(step=2, loss=1.0)
    assert capsys.readouterr().err.count("progress is not reported") == 1
    assert not target.exists() or target.read_bytes() == b""


def test_reports_of_several_processes_do_not_mix(spool: Path) -> None:
    code = "from explsched import report\nfor i in range(300): report(step=i, loss=1.0, accuracy=2.0)"
    workers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert len(lines(spool)) == 4 * 300 * 2


def test_checkpoint_signal(spool: Path) -> None:
    with CheckpointSignal("SIGUSR1") as checkpoint:
        assert not checkpoint.requested
        os.kill(os.getpid(), signal.SIGUSR1)
        assert checkpoint.requested
        checkpoint.saved(7)
        assert not checkpoint.requested
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert lines(spool)[0]["event"] == "checkpoint"
    assert lines(spool)[0]["step"] == 7


def test_the_step_of_a_checkpoint_may_be_numpys(spool: Path) -> None:
    numpy = pytest.importorskip("numpy")
    CheckpointSignal().saved(numpy.int64(7))
    assert [(entry["event"], entry["step"]) for entry in lines(spool)] == [("checkpoint", 7)]


def test_the_handler_before_is_back_afterwards(spool: Path) -> None:
    def own(_number: int, _frame: object) -> None: ...

    before = signal.signal(signal.SIGUSR1, own)
    try:
        with CheckpointSignal("USR1"):
            pass
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["NONE", "KILL", "sigstop", ""])
def test_only_signals_that_can_be_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name:
        monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "NONE")
    with pytest.raises(ValueError, match="can catch"):
        CheckpointSignal(name or None)


def test_a_checkpoint_has_the_permissions_of_any_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    before = os.umask(0o027)
    try:
        atomic_write(path, lambda file: file.write(b"old"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o664)
    atomic_write(path, lambda file: file.write(b"new"))
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_failed_checkpoint_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    atomic_write(path, lambda file: file.write(b"old"))
    with pytest.raises(ZeroDivisionError):
        atomic_write(path, lambda file: file.write(b"new"[: 1 // 0]))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_standard_library_is_enough() -> None:
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, '.');"
        "import explsched.progress, explsched.checkpoint, wrappers.sxrun, wrappers.sxreport, wrappers.sxbatch;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {'explsched', 'wrappers', 'sbatch_templates'};"
        "sys.exit(', '.join(sorted(new - sys.stdlib_module_names)) or 0)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_parameters_are_told_once_for_each_run(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (0, 1):
        progress.report(step=step, loss=1.0, params={"lr": 0.1, "width": 64, "note": None, "not a name": 1})
    progress.tell({"lr": 0.1, "width": 64})
    assert [entry["params"] for entry in lines(spool) if "params" in entry] == [{"lr": 0.1, "width": 64.0}]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    progress.report(step=2, params={"lr": 0.2})
    assert (lines(spool)[-1]["params"], lines(spool)[-1]["restart"]) == ({"lr": 0.2}, 1)


def test_secrets_among_the_parameters_are_not_told(spool: Path) -> None:
    """Of `vars(arguments)`, or the `hparams` of Lightning, others may see what is reported."""
    progress.report(step=1, loss=1.0, params={"lr": 0.1, "wandb_api_key": "abc", "max_tokens": 4096, "db.password": 1})
    progress.tell({"hf_token": "abc"})
    assert [entry["params"] for entry in lines(spool) if "params" in entry] == [{"lr": 0.1, "max_tokens": 4096.0}]


def test_numbers_and_truth_values_are_no_tokens_and_mappings_may_have_secrets(spool: Path) -> None:
    clear = {"token_dropout": 0.1, "pad_token_id": 0, "add_eos_token": True, "data": Path("/data/tokens")}
    secret = {"wandb": {"api_key": "abc"}, "hub": SimpleNamespace(api_key="abc"), "token": "123456", "token_id": b"12"}
    progress.tell({**secret, **clear, "login": ["--password", "abc"], "secret": 5, "optim": {"lr": 0.1}})
    (entry,) = lines(spool)
    assert entry["params"] == {**clear, "data": "/data/tokens", "optim": "{'lr': 0.1}"}


def test_tokens_of_models_and_numbers_that_are_not_finite_are_no_secrets(spool: Path) -> None:
    of_models = {"modules_to_save": ["embed_tokens", "lm_head"], "generation": {"max_new_tokens": 256}}
    progress.tell({**of_models, "token_dropout": float("nan"), "hub": {"hf_token": "abc"}, "tokens": ["abc"]})
    (entry,) = lines(spool)
    assert entry["params"] == {**{name: str(value) for name, value in of_models.items()}, "token_dropout": "nan"}


def test_lines_stay_short_enough_for_the_daemon_however_many_parameters(spool: Path) -> None:
    progress.report(step=0, params={f"p{n}": "x" * 999 for n in range(60)})
    assert len(lines(spool)) == 60
    assert max(map(len, (spool / "42.jsonl").read_text().splitlines())) < 4096
