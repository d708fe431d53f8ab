"""Lightning's callback. Where Lightning is not installed, tests are skipped, and say so."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.explsched.progress_file import events, lines, reports

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
"""A trainer of Lightning that does nothing else than to train."""


@pytest.mark.filterwarnings("default")  # Lightning warns of its own and of torch's next releases
@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_lightning(job: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", name)
    number = signal.Signals[f"SIG{name}"]
    left = signal.SIG_IGN if name == "USR1" else signal.getsignal(number)
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
    assert signal.getsignal(number) == left


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
@pytest.mark.parametrize("automatic", [True, False])
def test_lightning_saves_when_all_accumulated_gradients_are_in_the_weights(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, automatic: bool
) -> None:
    """Gradients that are accumulated so far are in no checkpoint."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Asking(lightning.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 4:
                os.kill(os.getpid(), signal.SIGUSR1)

    class ByHand(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> None:
            self.manual_backward((self.layer(batch) ** 2).mean())
            if index % 4 == 3:
                self.optimizers().step()
                self.optimizers().zero_grad()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    saved = []
    trainer = lightning.Trainer(
        max_epochs=1,
        callbacks=[Asking(), ExplschedCallback(checkpoint=tmp_path / "last.ckpt")],
        default_root_dir=tmp_path,
        **QUIET | ({"accumulate_grad_batches": 4} if automatic else {}),
    )

    def save(path: Path) -> None:
        saved.append(trainer.fit_loop.total_batch_idx)
        path.touch()

    monkeypatch.setattr(trainer, "save_checkpoint", save)
    module = plain(lightning, torch, []) if automatic else ByHand()
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(12, 1)))
    assert saved == [7]
    assert [line["step"] for line in lines(job) if line.get("event") == "checkpoint"] == [2]


@pytest.mark.filterwarnings("default")
def test_lightning_saves_where_steps_are_not_counted(job: Path, tmp_path: Path) -> None:
    """As those of an optimizer that the module has made for itself."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Own(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

        def configure_optimizers(self) -> None:
            pass

    path = tmp_path / "last.ckpt"
    callbacks = [ExplschedCallback(checkpoint=path)]
    trainer = lightning.Trainer(max_epochs=1, callbacks=callbacks, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Own(), torch.utils.data.DataLoader(torch.ones(1, 1)))
    assert path.exists()


@pytest.mark.filterwarnings("default")
def test_lightning_goes_on_where_no_checkpoint_can_be_saved(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk, where Lightning leaves a part of it."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    torch = pytest.importorskip("torch", reason="torch is not installed (explsched[examples])")
    from explsched.integrations.lightning import ExplschedCallback

    class Asking(lightning.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    def save(path: Path) -> None:
        path.write_text("half of i")
        raise OSError("no space left")

    place = tmp_path / "checkpoints"
    place.mkdir()
    (place / "last.ckpt").write_text("that of before")
    callbacks = [Asking(), ExplschedCallback(checkpoint=place / "last.ckpt")]
    trainer = lightning.Trainer(max_epochs=1, callbacks=callbacks, default_root_dir=tmp_path, **QUIET)
    monkeypatch.setattr(trainer, "save_checkpoint", save)
    trainer.fit(plain(lightning, torch, []), torch.utils.data.DataLoader(torch.ones(4, 1)))
    assert reports(job)[-1][0] == 4
    assert events(job) == []
    assert capfd.readouterr().err.count("no checkpoint is saved") == 1
    assert [path.read_text() for path in place.iterdir()] == ["that of before"]


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


def test_lightning_in_several_processes_goes_on_where_one_cannot_save(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed (explsched[examples])")
    (tmp_path / "train.py").write_text(SEVERAL)
    (tmp_path / "file").touch()
    argv = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "file" / "last.ckpt")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert events(job) == []
    assert done.stderr.count("no checkpoint is saved") == 1


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
    monkeypatch.setitem(sys.modules, "lightning.pytorch.strategies", SimpleNamespace(Strategy=object))
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
