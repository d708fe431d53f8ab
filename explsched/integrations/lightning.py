"""Lightning.

    trainer = Trainer(callbacks=[ExplschedCallback(checkpoint="last.ckpt")])
    trainer.fit(model, ckpt_path="last.ckpt" if Path("last.ckpt").exists() else None)

Validations of `fit` that log the job's metric become reports, or its epochs if it has no validations, and the module's
`hparams` the hyper-parameters. With a path for it a checkpoint is saved after a step of the optimizer when the
scheduler asks for one; all processes agree on the step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy

from explsched.checkpoint import signal_name
from explsched.errors import warn
from explsched.integrations import TrainerReports


class ExplschedCallback(Callback):
    """Args: as `explsched.integrations.TrainerReports`; `checkpoint` is where to save one when asked, None: nowhere."""

    def __init__(
        self,
        value: str | None = None,
        params: Mapping[str, object] | None = None,
        checkpoint: Path | str | None = None,
    ) -> None:
        super().__init__()
        self._reports = TrainerReports(value, params)
        self._path = checkpoint
        self._fits = False
        self._step = 0
        self._ended_epoch: tuple[int, float] | None = None
        """The step and the total steps of one that is not reported yet."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the hyper-parameters and listen for requests."""
        self._fits, self._ended_epoch = True, None
        if trainer.is_global_zero:
            self._reports.announce(dict(pl_module.hparams))
        if not _is_lightnings(signal_name(os.environ)):
            self._reports.listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen in the place of Lightning, which has meanwhile begun to end the training at SIGTERM."""
        self._step = trainer.global_step
        if _is_lightnings(signal_name(os.environ)):
            self._reports.listen()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the last epoch, and let Lightning restore what it found."""
        self._report_epoch(trainer)
        if _is_lightnings(signal_name(os.environ)):
            self._reports.end()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen no more."""
        self._fits = False
        self._reports.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Report an epoch that has just ended, and listen no more."""
        self._report_epoch(trainer)
        self._fits = False
        self._reports.end()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A value of the metric is known. `trainer.validate` has no steps: what it finds is not reported."""
        if self._fits and not trainer.sanity_checking:
            self._report(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A value of the metric is known, of the training, if it is not validated, once the module has logged it."""
        if not trainer.enable_validation:
            self._ended_epoch = trainer.global_step, _total_steps(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The module has logged what it logs at the end of an epoch."""
        self._report_epoch(trainer)

    def _report_epoch(self, trainer: Trainer) -> None:
        if self._ended_epoch and trainer.is_global_zero:
            step, total_steps = self._ended_epoch
            self._reports.report(step, trainer.callback_metrics, total_steps)
        self._ended_epoch = None

    def _report(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._reports.report(trainer.global_step, trainer.callback_metrics, _total_steps(trainer, pl_module))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """A checkpoint can be saved now, unless gradients are accumulated: it would not have them."""
        before, self._step = self._step, trainer.global_step
        counts_steps = pl_module.automatic_optimization or self._step > 0  # not those of a torch optimizer by itself
        if self._path is None or (counts_steps and self._step == before):
            return
        if self._reports.agreed(partial(trainer.strategy.reduce_boolean_decision, all=False)):
            if self._save(trainer, self._path) and trainer.is_global_zero:
                self._reports.saved(trainer.global_step)
            else:
                self._reports.answered()

    def _save(self, trainer: Trainer, path: Path | str) -> bool:
        """Save a checkpoint; whether it is saved, as all processes agree: a full disk does not end the training.

        The one of before is replaced by a complete one only: Lightning copies it there from a temporary file. Raises
        OSError where each process writes a part (FSDP, DeepSpeed): others may wait for what one has not done.
        """
        if type(trainer.strategy).save_checkpoint is not Strategy.save_checkpoint or "://" in str(path):
            trainer.save_checkpoint(path)
            return True
        draft, is_saved = Path(path).with_name(f".{Path(path).name}.draft"), True
        try:
            try:
                trainer.save_checkpoint(draft)
            except OSError:
                trainer.strategy.barrier("Trainer.save_checkpoint")  # at which the others wait
                raise
            if trainer.is_global_zero:
                draft.replace(path)
        except OSError as error:
            is_saved = False
            warn("explsched", f"no checkpoint is saved: {error}")
            with suppress(OSError):  # of what has been told of already
                draft.unlink(missing_ok=True)
        return trainer.strategy.reduce_boolean_decision(is_saved)


def _is_lightnings(name: str) -> bool:
    """Whether Lightning handles a signal itself, also where somebody else does already."""
    return name.upper().removeprefix("SIG") == "TERM"


def _total_steps(trainer: Trainer, module: LightningModule) -> float:
    """The steps so far and those that are left as batches are accumulated now, which a scheduler may change."""
    total_steps = float(trainer.estimated_stepping_batches)
    if not module.automatic_optimization:  # a step of each optimizer counts, but a batch only once
        total_steps *= trainer.global_step / (trainer.fit_loop.total_batch_idx + 1)
    elif trainer.max_epochs not in (None, -1) and math.isfinite(trainer.num_training_batches):
        accumulated, batches = trainer.accumulate_grad_batches, trainer.num_training_batches
        done, of_epoch = trainer.fit_loop.epoch_loop.batch_idx + 1, math.ceil(batches / accumulated)
        in_epoch = done // accumulated if done < batches else of_epoch
        total_steps = trainer.global_step + of_epoch * (trainer.max_epochs - trainer.current_epoch) - in_epoch
    return total_steps if trainer.max_steps == -1 else min(total_steps, trainer.max_steps)
