"""Keras 3.

    model.fit(x, y, epochs=10, callbacks=[ExplschedCallback(checkpoint="last.keras")])

Epochs become reports: their number is the step. With a path for it the model is saved at the end of a batch when the
scheduler asks for a checkpoint; `keras.models.load_model` and `initial_epoch` go on from there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import keras

from explsched.errors import warn
from explsched.integrations import TrainerReports


class ExplschedCallback(keras.callbacks.Callback):
    """Args: as `explsched.integrations.TrainerReports`; `checkpoint` is where to save one when asked, None: nowhere.

    With a `validation_freq` above 1 give `value`: epochs before the first validation have values of the training only.
    """

    def __init__(
        self,
        value: str | None = None,
        params: Mapping[str, object] | None = None,
        checkpoint: Path | str | None = None,
    ) -> None:
        super().__init__()
        self._reports = TrainerReports(value, params)
        self._path = None if checkpoint is None else Path(checkpoint)
        self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Report the hyper-parameters and listen for requests."""
        self._reports.begin()

    def on_train_end(self, logs: Mapping[str, object] | None = None) -> None:
        """Listen no more."""
        self._reports.end()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """A value of the metric is known."""
        self._epoch = epoch + 1
        self._reports.report(self._epoch, logs or {}, (self.params or {}).get("epochs"))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        """A checkpoint can be saved now."""
        if self._path is None or not self._reports.is_checkpoint_wanted:
            return
        draft = self._path.with_name(f".{os.getpid()}.{self._path.name}")
        try:
            self.model.save(draft)
            draft.replace(self._path)
        except OSError as error:  # a full disk, say: the training goes on
            warn("explsched", f"no checkpoint is saved: {error}")
            with suppress(OSError):  # of what has been told of already
                draft.unlink(missing_ok=True)
            self._reports.answered()
        else:
            self._reports.saved(self._epoch)
