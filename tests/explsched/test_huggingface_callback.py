"""The callback for Hugging Face's Trainer, where transformers is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.explsched.progress_file import events, lines, reports


def libraries() -> tuple[Any, Any]:
    """transformers and torch; skips the test where one, or what they need, is not installed."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    pytest.importorskip("accelerate", reason="accelerate is not installed (explsched[examples])")
    return transformers, torch


def line(torch: Any) -> Any:
    """A model as the trainer wants it."""

    class Line(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            predicted = self.layer(x)
            return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}

    return Line()


def asking(transformers: Any, step: int) -> Any:
    """A callback by which the scheduler asks for a checkpoint in that step."""

    class Asking(transformers.TrainerCallback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
            if state.global_step == step - 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    return Asking()


def test_hugging_face(job: Path, tmp_path: Path) -> None:
    transformers, torch = libraries()
    from explsched.integrations.huggingface import ExplschedCallback, last_checkpoint

    data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 8
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=4, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True
    )
    callbacks = [asking(transformers, step=3), ExplschedCallback(params={"lr": 0.1})]
    transformers.Trainer(line(torch), arguments, train_dataset=data, callbacks=callbacks).train()
    assert [step for step, _ in reports(job)][:4] == [1, 2, 3, 4]
    assert events(job) == ["checkpoint"]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-3"]
    assert last_checkpoint(tmp_path / "out") == str(tmp_path / "out" / "checkpoint-3")


def test_a_request_in_a_step_whose_evaluation_saves_nothing_is_kept(job: Path, tmp_path: Path) -> None:
    """With this strategy the trainer decides at an evaluation whether it saves, after the callbacks."""
    transformers, torch = libraries()
    from explsched.integrations.huggingface import ExplschedCallback

    training, worse = ([{"x": torch.tensor([1.0]), "labels": torch.tensor([y])}] * 8 for y in (2.0, -2.0))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=6,
        learning_rate=0.1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="best",
        metric_for_best_model="loss",
        greater_is_better=False,
        report_to=[],
        use_cpu=True,
    )
    callbacks = [asking(transformers, step=4), ExplschedCallback()]
    transformers.Trainer(
        line(torch), arguments, train_dataset=training, eval_dataset=worse, callbacks=callbacks
    ).train()
    assert [entry["step"] for entry in lines(job) if entry.get("event") == "checkpoint"] == [2, 5]


@pytest.mark.parametrize(("name", "expected"), [("USR1", ["step", "save"]), ("", [])])
def test_processes_wait_for_each_other_only_where_they_may_be_asked(
    job: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: list[str]
) -> None:
    """Elsewhere rank 0 may have the callback alone, and would wait for ever."""
    libraries()
    from explsched.integrations.huggingface import ExplschedCallback

    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", name)
    waited: list[str] = []

    def waits(place: str) -> bool:
        waited.append(place)
        return False

    monkeypatch.setattr("explsched.integrations.TrainerReports.agreed", lambda _self: waits("step"))
    monkeypatch.setattr("explsched.integrations.huggingface.any_rank", lambda wanted: waits("save") or wanted)
    callback = ExplschedCallback()
    arguments: Any = SimpleNamespace(world_size=2)
    state: Any = SimpleNamespace(is_world_process_zero=True, global_step=1)
    control: Any = SimpleNamespace(should_save=False)
    callback.on_step_end(arguments, state, control)
    callback.on_save(arguments, state, control)
    assert (waited, control.should_save) == (expected, False)


IN_SEVERAL = """\
import os, pathlib, signal, time, torch, transformers
from explsched.integrations.huggingface import ExplschedCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

class Asking(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **_more):
        if (args.process_index, state.global_step) in ((1, 2), (0, 5), (1, 5)):
            os.kill(os.getpid(), signal.SIGUSR1)

class Trainer(transformers.Trainer):
    def _save_rng_state(self, directory):  # at the trainer's own checkpoint rank 1 is slow
        told = pathlib.Path(os.environ["EXPLSCHED_PROGRESS_FILE"])
        end_s = time.monotonic() + (2 if directory.endswith("-8") and self.args.process_index == 1 else 0)
        while time.monotonic() < end_s and '"step":8' not in told.read_text().replace(" ", ""):
            time.sleep(0.05)
        super()._save_rng_state(directory)
        with told.open("a") as lines:
            lines.write('{"written": %d}\\n' % self.state.global_step)

data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 16
arguments = transformers.TrainingArguments(
    "out", max_steps=8, save_steps=8, report_to=[], use_cpu=True, ddp_backend="gloo", disable_tqdm=True
)
Trainer(Line(), arguments, train_dataset=data, callbacks=[Asking(), ExplschedCallback()]).train()
os._exit(0)
"""


def test_several_processes_that_are_asked_at_different_steps(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They save at the same, and a checkpoint is told of when all have written it, also the trainer's own."""
    for name in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (explsched[examples])")
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "USR1")
    (tmp_path / "train.py").write_text(IN_SEVERAL)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    entries = [entry for entry in lines(job) if "written" in entry or entry.get("event") == "checkpoint"]
    assert [entry.get("written", 0) or -entry["step"] for entry in entries] == [3, 3, -3, 6, 6, -6, 8, 8, -8]
    for step in (3, 6, 8):
        saved = {path.name for path in (tmp_path / "out" / f"checkpoint-{step}").iterdir()}
        assert {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"} <= saved


def test_a_checkpoint_of_hugging_face_that_was_not_completed_is_passed_over(tmp_path: Path) -> None:
    """As of a run that was killed while it saved: every later run would fail with it."""
    pytest.importorskip("transformers", reason="transformers is not installed (explsched[examples])")
    from explsched.integrations.huggingface import last_checkpoint

    assert last_checkpoint(tmp_path / "none") is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").touch()
    (tmp_path / "checkpoint-of-mine").mkdir()
    assert last_checkpoint(tmp_path) is None
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_hugging_face_before_eval_strategy(job: Path) -> None:
    """`TrainingArguments` had another name for it before transformers 4.41."""
    pytest.importorskip("transformers", reason="transformers is not installed (explsched[examples])")
    from explsched.integrations.huggingface import ExplschedCallback

    trains: Any = SimpleNamespace(is_world_process_zero=True, global_step=1, max_steps=4)
    callback = ExplschedCallback()
    arguments: Any = SimpleNamespace()
    control: Any = None
    callback.on_train_begin(arguments, trains, control)
    callback.on_log(arguments, trains, control, {"loss": 0.5})
    callback.on_train_end(arguments, trains, control)
    assert reports(job) == [(1, 0.5)]


def test_hugging_face_reports_evaluations_alone(job: Path, tmp_path: Path) -> None:
    transformers, torch = libraries()
    from explsched.integrations.huggingface import ExplschedCallback

    training, evaluation = ([{"x": torch.tensor([1.0]), "labels": torch.tensor([y])}] * 8 for y in (2.0, 99.0))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=4,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    callbacks = [ExplschedCallback()]
    trainer = transformers.Trainer(
        line(torch), arguments, train_dataset=training, eval_dataset=evaluation, callbacks=callbacks
    )
    trainer.train()
    assert [step for step, _ in reports(job)] == [2, 4]
    assert all(value > 1000 for _, value in reports(job))
