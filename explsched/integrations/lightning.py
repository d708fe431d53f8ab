"""Lightning.

    trainer = Trainer(callbacks=[ExplschedCallback(checkpoint="last.ckpt")])
    trainer.fit(model, ckpt_path="last.ckpt" if Path("last.ckpt").exists() else None)

Validations of `fit` that log the job's metric become reports, and the module's `hparams` the hyper-parameters. With a
path for it a checkpoint is saved at the end of a batch when the scheduler asks for one; all processes agree on the
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

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

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the hyper-parameters and listen for requests."""
        self._fits = True
        if trainer.is_global_zero:
            self._reports.begin(dict(pl_module.hparams))
        else:
            self._reports.listen()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen no more."""
        self._fits = False
        self._reports.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Listen no more."""
        self._fits = False
        self._reports.end()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A value of the metric is known. `trainer.validate` has no steps: what it finds is not reported."""
        if self._fits and trainer.is_global_zero and not trainer.sanity_checking:
            total_steps = float(trainer.estimated_stepping_batches)
            if not pl_module.automatic_optimization:  # a step of each optimizer counts, but a batch only once
                total_steps *= trainer.global_step / (trainer.fit_loop.total_batch_idx + 1)
                total_steps = total_steps if trainer.max_steps == -1 else min(total_steps, trainer.max_steps)
            self._reports.report(trainer.global_step, trainer.callback_metrics, total_steps)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """A checkpoint can be saved now."""
        if self._path is None:
            return
        if trainer.strategy.reduce_boolean_decision(self._reports.is_checkpoint_wanted, all=False):
            trainer.save_checkpoint(self._path)
            if trainer.is_global_zero:
                self._reports.saved(trainer.global_step)
            else:
                self._reports.answered()
