"""Callbacks of trainers. Those of libraries that are not installed are skipped, and say so."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from explsched.integrations import TrainerReports
from tests.explsched.progress_file import events, lines, reports


@pytest.mark.parametrize("name", ["loss", "eval_loss", "val_loss", "val/loss", "eval/loss"])
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


def test_evaluations_without_the_metric_are_said_once(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As those of the Hugging Face trainer with several data sets."""
    trainer = TrainerReports()
    trainer.begin()
    trainer.await_evaluation()
    for values in ({"loss": 0.1}, {"eval_a_loss": 1.0}, {"eval_b_loss": 1.0}, {"loss": 0.1}):
        trainer.report(1, values)
    trainer.end()
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert "eval_a_loss: none is the evaluation's loss" in told
    assert "ExplschedCallback(NAME)" in told


@pytest.mark.parametrize("value", [None, "val_acc"])
def test_a_training_that_reported_nothing_says_so(
    job: Path, capfd: pytest.CaptureFixture[str], value: str | None
) -> None:
    trainer = TrainerReports(value)
    trainer.begin()
    trainer.report(1, {"train_acc": 0.5, "epoch": 1})
    trainer.report(2, {"epoch": 2})
    trainer.end()
    told = capfd.readouterr().err
    assert f"nothing was reported, for there was no {value or 'loss'} among: epoch, train_acc" in told
    assert told.count("\n") == 1


def test_what_reports_or_has_nothing_to_report_says_nothing(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = TrainerReports()
    trainer.listen()  # beside the process that reports
    trainer.end()
    trainer.begin()  # and fails at once
    trainer.end()
    trainer.begin()
    trainer.report(1, {"epoch": 1})
    trainer.report(1, {"loss": 1.0, "val_loss": 1.0})
    trainer.end()
    assert capfd.readouterr().err == ""


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
    trainer = TrainerReports(params={"lr": 0.1})
    trainer.begin({"lr": 0.5, "width": 64})
    assert not trainer.is_checkpoint_wanted
    os.kill(os.getpid(), signal.SIGUSR1)
    assert trainer.is_checkpoint_wanted
    trainer.saved(7)
    assert not trainer.is_checkpoint_wanted
    trainer.end()
    assert lines(job)[0]["params"] == {"lr": 0.1, "width": 64.0}
    assert events(job) == ["checkpoint"]


def kept(_number: int, _frame: object) -> None:
    """A handler of the user's own."""


@pytest.mark.parametrize(
    ("name", "found", "left"),
    [
        ("USR1", signal.SIG_DFL, signal.SIG_IGN),
        ("USR2", signal.SIG_DFL, signal.SIG_IGN),
        ("HUP", signal.SIG_DFL, signal.SIG_DFL),
        ("USR1", kept, kept),
    ],
)
def test_a_request_after_the_training_does_not_end_its_process(
    job: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: Any, left: Any
) -> None:
    """srun passes these two on, also while the model is evaluated and saved; others are meant to end who gets them."""
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", name)
    number = signal.Signals[f"SIG{name}"]
    before = signal.signal(number, found)
    try:
        trainer = TrainerReports()
        trainer.begin()
        trainer.end()
        assert signal.getsignal(number) == left
    finally:
        signal.signal(number, before)


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


def keras_model(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """A model, a callback that asks for a checkpoint in the second epoch, and data."""
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    keras = pytest.importorskip("keras", reason="keras is not installed (explsched[examples])")
    numpy = pytest.importorskip("numpy")

    class Asking(keras.callbacks.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, Asking(), numpy.ones((4, 1))


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of torch's tensors, which Keras saves
def test_keras(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asking, data = keras_model(monkeypatch)
    from explsched.integrations.keras import ExplschedCallback

    path = tmp_path / "last.keras"
    callbacks = [asking, ExplschedCallback(checkpoint=path)]
    model.fit(data, data, epochs=3, verbose=0, callbacks=callbacks, validation_data=(data, data + 99))
    assert [(step, value > 1000) for step, value in reports(job)] == [(1, True), (2, True), (3, True)]
    assert lines(job)[0]["total_steps"] == 3
    assert (events(job), path.exists()) == (["checkpoint"], True)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_keras_goes_on_where_no_checkpoint_can_be_saved(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, asking, data = keras_model(monkeypatch)
    from explsched.integrations.keras import ExplschedCallback

    path = tmp_path / "taken.keras"
    (path / "x").mkdir(parents=True)  # no file can take its place
    model.fit(data, data, epochs=3, verbose=0, callbacks=[asking, ExplschedCallback(checkpoint=path)])
    assert [step for step, _ in reports(job)] == [1, 2, 3]
    assert events(job) == []
    assert list(tmp_path.glob(".*")) == []
    assert capfd.readouterr().err.count("no checkpoint is saved") == 1
