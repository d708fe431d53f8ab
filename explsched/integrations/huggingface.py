"""Hugging Face's Trainer.

    trainer = Trainer(model, arguments, ..., callbacks=[ExplschedCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))

Evaluations that have the job's metric become reports; without evaluations, what is logged of the training. When the
scheduler asks for a checkpoint, the trainer saves one at the end of the step, on which all processes agree. The trainer
saves it itself: where that fails, as on a full disk, the training ends.

Processes that train together need the callback in every process: the others would wait for one without it. They agree
only where the environment names the checkpoint signal, which `sxrun` sees to: elsewhere one may have it alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from explsched.integrations import TrainerReports
from explsched.job_options.table import CHECKPOINT
from explsched.ranks import any_rank

_CHECKPOINT = re.compile(r"checkpoint-(\d+)\Z", re.ASCII)
_WRITTEN_LAST = "trainer_state.json"


def last_checkpoint(directory: Path | str) -> str | None:
    """The newest checkpoint in a trainer's `output_dir` that is complete; None if there is none, or no directory.

    `get_last_checkpoint` of transformers also takes one of a run that was killed while it saved.
    """
    complete = (path.parent for path in Path(directory).glob(f"checkpoint-*/{_WRITTEN_LAST}"))
    steps = {int(found[1]): path for path in complete if (found := _CHECKPOINT.match(path.name))}
    return str(steps[max(steps)]) if steps else None


class ExplschedCallback(TrainerCallback):
    """Args: as `explsched.integrations.TrainerReports`, `value` being a name such as `eval_accuracy`."""

    def __init__(self, value: str | None = None, params: Mapping[str, object] | None = None) -> None:
        self._reports = TrainerReports(value, params)
        self._was_asked = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: object
    ) -> None:
        """Listen for requests."""
        self._was_asked = False
        if not state.is_world_process_zero:
            self._reports.listen()
            return
        self._reports.begin()
        if getattr(args, "eval_strategy", "no") != "no":  # before transformers 4.41 it had another name
            self._reports.await_evaluation()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: object
    ) -> None:
        """Listen no more."""
        self._reports.end()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **_more: object,
    ) -> None:
        """The trainer logs its losses, and what it evaluated."""
        if state.is_world_process_zero:
            self._reports.report(state.global_step, logs or {}, state.max_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: object
    ) -> None:
        """A checkpoint can be saved now."""
        if _agrees(args):
            self._was_asked = self._reports.agreed() or self._was_asked
        if self._was_asked:  # until on_save: with save_strategy="best" the trainer drops it at an evaluation
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: object) -> None:
        """A checkpoint is on disk, whoever wanted it."""
        self._was_asked = False
        if _agrees(args):
            any_rank(wanted=False)  # waits for the others, each of which saves its random state, or a part of the model
        if state.is_world_process_zero:
            self._reports.saved(state.global_step)
        else:
            self._reports.answered()


def _agrees(args: TrainingArguments) -> bool:
    """Whether the processes may wait for each other here, as all of them have the callback."""
    return args.world_size == 1 or bool(os.environ.get(CHECKPOINT.variable))
