"""Callbacks of trainers. Those of libraries that are not installed are skipped, and say so."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from explsched.integrations import TrainerReports

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
"""A trainer of Lightning that does nothing else than to train."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job's environment and its progress file. After a failure Lightning restores the handlers that it found."""
    before = signal.getsignal(signal.SIGUSR1)
    path = tmp_path / "progress.jsonl"
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(path))
    for name in ("SLURM_RESTART_COUNT", "EXPLSCHED_METRIC", "EXPLSCHED_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)
    yield path
    signal.signal(signal.SIGUSR1, before)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reports(path: Path, metric: str = "loss") -> list[tuple[int, float]]:
    return [(line["step"], line["value"]) for line in lines(path) if line.get("metric") == metric]


def events(path: Path) -> list[str]:
    return [line["event"] for line in lines(path) if "event" in line]


@pytest.mark.parametrize("name", ["loss", "eval_loss", "val_loss"])
def test_the_jobs_metric_is_found_by_the_usual_names(job: Path, name: str) -> None:
    assert TrainerReports().report(3, {"epoch": 1.0, name: 0.5}, 10)
    assert reports(job) == [(3, 0.5)]
    assert lines(job)[0]["total_steps"] == 10


@pytest.mark.parametrize(
    "calls", [[{"loss": 0.1, "val_loss": 0.5}], [{"val_loss": 0.5}, {"loss": 0.1}, {"test_loss": 0.0}]]
)
def test_where_there_are_evaluations_the_training_is_not_reported(job: Path, calls: list[dict[str, object]]) -> None:
    trainer = TrainerReports()
    for step in (1, 2):
        for values in calls:
            trainer.report(step, values)
    assert reports(job) == [(1, 0.5), (2, 0.5)]
    trainer.begin()  # of another training, without evaluations
    assert trainer.report(1, {"loss": 0.5})
    trainer.end()


def test_what_comes_before_the_first_evaluation_waits_for_it(job: Path) -> None:
    trainer = TrainerReports()
    trainer.await_evaluation()
    assert not trainer.report(1, {"loss": 0.1})
    assert trainer.report(2, {"eval_loss": 1.0})
    named = TrainerReports("loss")
    named.await_evaluation()
    assert named.report(3, {"loss": 0.1})
    assert reports(job) == [(2, 1.0), (3, 0.1)]


def test_an_evaluation_without_the_metric_is_not_waited_for_again(job: Path) -> None:
    trainer = TrainerReports()
    trainer.await_evaluation()
    assert not trainer.report(1, {"loss": 0.1})
    assert not trainer.report(1, {"eval_others_loss": 1.0})
    assert trainer.report(2, {"loss": 0.1})


def test_a_value_of_another_name_is_reported_as_the_jobs_metric(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_METRIC", "acc")
    trainer = TrainerReports("eval_f1")
    assert trainer.report(3, {"eval_f1": 0.5, "acc": 0.9}, float("inf"))
    assert reports(job, "acc") == [(3, 0.5)]
    assert "total_steps" not in lines(job)[0]


@pytest.mark.parametrize("metric", ["step", "total_steps", "params", "value"])
def test_a_metric_may_have_the_name_of_a_field(job: Path, monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    monkeypatch.setenv("EXPLSCHED_METRIC", metric)
    assert TrainerReports().report(3, {f"eval_{metric}": 0.5}, 10)
    assert reports(job, metric) == [(3, 0.5)]


@pytest.mark.parametrize("values", [{}, {"loss": None}, {"loss": "low"}, {"loss": [1, 2]}, {"loss": 10**400}])
def test_what_is_no_value_is_no_report_and_no_error(job: Path, values: dict[str, object]) -> None:
    assert not TrainerReports().report(3, values)
    assert not job.exists()


def test_nan_is_reported_as_such(job: Path) -> None:
    assert TrainerReports().report(3, {"loss": float("nan")}, 0)
    assert lines(job)[0]["bad"] == "nan"


def test_a_request_for_a_checkpoint_is_noticed_and_answered(job: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    trainer = TrainerReports(params={"lr": 0.1})
    trainer.begin({"lr": 0.5, "width": 64})
    assert not trainer.is_checkpoint_wanted
    os.kill(os.getpid(), signal.SIGUSR1)
    assert trainer.is_checkpoint_wanted
    trainer.saved(7)
    assert not trainer.is_checkpoint_wanted
    trainer.end()
    assert signal.getsignal(signal.SIGUSR1) == before
    assert lines(job)[0]["params"] == {"lr": 0.1, "width": 64.0}
    assert events(job) == ["checkpoint"]


def test_outside_the_main_thread_there_are_reports_all_the_same(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = TrainerReports()

    def train() -> None:
        trainer.begin()
        trainer.report(1, {"loss": 1.0})
        trainer.end()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert reports(job) == [(1, 1.0)]
    assert "outside the main thread" in capfd.readouterr().err


def test_hugging_face(job: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    pytest.importorskip("accelerate", reason="accelerate is not installed (explsched[examples])")
    from explsched.integrations.huggingface import ExplschedCallback

    class Line(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    class Asking(transformers.TrainerCallback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 8
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=4, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True
    )
    callbacks = [Asking(), ExplschedCallback(params={"lr": 0.1})]
    transformers.Trainer(Line(), arguments, train_dataset=data, callbacks=callbacks).train()
    assert [step for step, _ in reports(job)][:4] == [1, 2, 3, 4]
    assert events(job) == ["checkpoint"]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-3"]


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
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    pytest.importorskip("accelerate", reason="accelerate is not installed (explsched[examples])")
    from explsched.integrations.huggingface import ExplschedCallback

    class Line(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            predicted = self.layer(x)
            return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}

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
        Line(), arguments, train_dataset=training, eval_dataset=evaluation, callbacks=callbacks
    )
    trainer.train()
    assert [step for step, _ in reports(job)] == [2, 4]
    assert all(value > 1000 for _, value in reports(job))


@pytest.mark.filterwarnings("default")  # Lightning warns of its own and of torch's next releases
@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_lightning(job: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", name)
    number = signal.Signals[f"SIG{name}"]
    before = signal.getsignal(number)
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Line(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            if self.global_step == 2:
                os.kill(os.getpid(), number)
            loss = (self.layer(batch) ** 2).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", (self.layer(batch) ** 2).mean() + 1000)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), self.hparams["lr"])

    data = torch.utils.data.DataLoader(torch.ones(2, 1))
    path = tmp_path / "last.ckpt"
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[ExplschedCallback(checkpoint=path)],
        default_root_dir=tmp_path,
        **QUIET,
    )
    trainer.fit(Line(0.1), data, data)
    assert [(step, value > 1000) for step, value in reports(job)] == [(2, True), (4, True)]
    assert lines(job)[0]["params"] == {"lr": 0.1}
    assert (events(job), path.exists()) == (["checkpoint"], True)
    assert signal.getsignal(number) == before


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("max_steps", "every", "told"),
    [
        (-1, {0: 1, 1: 2, 2: 3}, [(2, 12), (4, 12), (5, 8), (6, 8), (6, 8), (8, 8)]),
        (7, {0: 1}, [(2, 7), (4, 7), (6, 7)]),
        (-1, {0: 3}, [(0, 6), (2, 6), (2, 6), (4, 6), (4, 6), (6, 6)]),
    ],
)
def test_lightning_where_batches_are_accumulated(
    job: Path, tmp_path: Path, max_steps: int, every: dict[int, int], told: list[tuple[int, int]]
) -> None:
    """Four batches an epoch, of which every second is followed by a validation."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    scheduler = lightning.callbacks.GradientAccumulationScheduler(every)
    trainer = lightning.Trainer(
        max_epochs=3,
        max_steps=max_steps,
        val_check_interval=2,
        callbacks=[ExplschedCallback(), scheduler],
        default_root_dir=tmp_path,
        **QUIET,
    )
    data = torch.utils.data.DataLoader(torch.ones(4, 1))
    trainer.fit(plain(lightning, torch, ["validation_step"]), data, data)
    assert [(line["step"], line["total_steps"]) for line in lines(job) if "step" in line] == told


@pytest.mark.filterwarnings("default")
def test_lightning_without_validations_reports_the_training(job: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[ExplschedCallback()],
        default_root_dir=tmp_path,
        **QUIET,
    )
    trainer.fit(plain(lightning, torch, []), torch.utils.data.DataLoader(torch.ones(4, 1)))
    assert [(line["step"], line["total_steps"]) for line in lines(job) if line.get("metric") == "loss"] == [
        (4, 8),
        (8, 8),
    ]


@pytest.mark.filterwarnings("default")
def test_lightning_reports_what_the_module_logs_at_the_end_of_an_epoch(job: Path, tmp_path: Path) -> None:
    """Modules are called after callbacks."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Line(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return (self.layer(batch) ** 2).mean()

        def on_train_epoch_end(self) -> None:
            self.log("loss", 100.0 + self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=3,
        callbacks=[ExplschedCallback()],
        default_root_dir=tmp_path,
        **QUIET,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(5, 1)))
    assert reports(job) == [(5, 100.0), (10, 101.0), (15, 102.0)]


@pytest.mark.filterwarnings("default")
def test_lightning_reports_an_epoch_at_whose_end_the_training_fails(job: Path, tmp_path: Path) -> None:
    """As where Lightning ends it for SIGTERM once the epoch's last step is done."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Failing(lightning.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_train_epoch_end(self, *_: Any) -> None:
            raise OSError("no space left for a checkpoint")

    trainer = lightning.Trainer(
        max_epochs=3,
        callbacks=[ExplschedCallback(), Failing()],
        default_root_dir=tmp_path,
        **QUIET,
    )
    with pytest.raises(OSError, match="no space"):
        trainer.fit(plain(lightning, torch, []), torch.utils.data.DataLoader(torch.ones(5, 1)))
    assert [step for step, _ in reports(job)] == [5]


def plain(lightning: Any, torch: Any, validates: list[str]) -> Any:
    """A module that logs its loss, and validates if asked to."""

    class Line(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.layer(batch) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def validation_step(self: Any, batch: Any, index: int) -> None:
        self.log("val_loss", 0.5)

    return type("Line", (Line,), dict.fromkeys(validates, validation_step))()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("max_steps", "total_steps"), [(-1, 12), (10, 10)])
def test_lightning_where_a_batch_is_a_step_of_several_optimizers(
    job: Path, tmp_path: Path, max_steps: int, total_steps: int
) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Both(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward((self.layer(batch) ** 2).mean())
                optimizer.step()

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", 0.5)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD([parameter], 0.1) for parameter in self.parameters()], []

    data = torch.utils.data.DataLoader(torch.ones(2, 1))
    trainer = lightning.Trainer(
        max_epochs=3,
        max_steps=max_steps,
        callbacks=[ExplschedCallback()],
        default_root_dir=tmp_path,
        **QUIET,
    )
    trainer.fit(Both(), data, data)
    told = [(line["step"], line["total_steps"]) for line in lines(job) if "step" in line]
    assert told == [(step, total_steps) for step in (4, 8, 12) if step <= total_steps]


SEVERAL = """\
import os, signal, sys, lightning.pytorch, torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from explsched.integrations.lightning import ExplschedCallback

class Line(lightning.pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        if index == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return (self.layer(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = lightning.pytorch.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", plugins=[LightningEnvironment()], logger=False,
    callbacks=[ExplschedCallback(checkpoint=sys.argv[1])], enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(8, 1)))
"""


def test_lightning_in_several_processes_that_all_get_the_signal(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    (tmp_path / "train.py").write_text(SEVERAL)
    path = tmp_path / "last.ckpt"
    argv = [sys.executable, str(tmp_path / "train.py"), str(path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (events(job), path.exists()) == (["checkpoint"], True)


def test_a_validation_after_the_training_is_none_of_its_reports(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning asks the module for data to train on where it is to say how many steps a `validate` has, and fails."""

    class Trainer:
        is_global_zero, sanity_checking, global_step, max_epochs, max_steps = True, False, 4, -1, -1
        callback_metrics: ClassVar = {"val_loss": 0.5}

        @property
        def estimated_stepping_batches(self) -> int:
            if not trains:
                raise RuntimeError("`train_dataloader` must be implemented")
            return 8

    library = SimpleNamespace(Callback=object, LightningModule=object, Trainer=Trainer)
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(pytorch=library))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", library)
    monkeypatch.delitem(sys.modules, "explsched.integrations.lightning", raising=False)
    callback = importlib.import_module("explsched.integrations.lightning").ExplschedCallback()
    del sys.modules["explsched.integrations.lightning"]
    trainer, module, trains = Trainer(), SimpleNamespace(hparams={}, automatic_optimization=True), True
    callback.on_fit_start(trainer, module)
    callback.on_validation_end(trainer, module)
    callback.on_fit_end(trainer, module)
    trains = False
    callback.on_validation_end(trainer, module)
    assert reports(job) == [(4, 0.5)]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of torch's tensors, which Keras saves
def test_keras(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    keras = pytest.importorskip("keras", reason="keras is not installed (explsched[examples])")
    numpy = pytest.importorskip("numpy")
    from explsched.integrations.keras import ExplschedCallback

    class Asking(keras.callbacks.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = tmp_path / "last.keras"
    data = numpy.ones((4, 1))
    callbacks = [Asking(), ExplschedCallback(checkpoint=path)]
    model.fit(data, data, epochs=3, verbose=0, callbacks=callbacks, validation_data=(data, data + 99))
    assert [(step, value > 1000) for step, value in reports(job)] == [(1, True), (2, True), (3, True)]
    assert lines(job)[0]["total_steps"] == 3
    assert (events(job), path.exists()) == (["checkpoint"], True)
