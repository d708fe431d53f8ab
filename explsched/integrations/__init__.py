"""Progress without new code: callbacks for trainers.

    from explsched.integrations.huggingface import ExplschedCallback   # Hugging Face Trainer
    from explsched.integrations.lightning import ExplschedCallback     # Lightning
    from explsched.integrations.keras import ExplschedCallback         # Keras

Each module imports its library; this one, with what they share, imports none.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping

from explsched.checkpoint import CheckpointSignal, signal_name
from explsched.errors import warn
from explsched.job_options.table import METRIC
from explsched.process_signals import signal_number
from explsched.progress import report_values, tell, tell_script
from explsched.ranks import any_rank

_EVALUATION = tuple(name + end for end in "_/" for name in ("eval", "val", "valid", "validation", "test"))
_LONGEST_LIST = 400
_PASSED_ON_BY_SRUN = (signal.SIGUSR1, signal.SIGUSR2)  # to tasks, at once; others sxrun keeps from who does not listen


class TrainerReports:
    """What a trainer's values are to explsched: reports of the job's metric; and requests for checkpoints.

    Args:
        value: the name that the trainer has for the job's metric. By default that with eval_, val_, valid_, validation_
            or test_ (or eval/ and so on) before it; the metric's own name, often a value of the training, until one of
            these has come.
        params: hyper-parameters to report.

    """

    def __init__(self, value: str | None = None, params: Mapping[str, object] | None = None) -> None:
        self._value = value
        self._evaluation: str | None = None
        self._awaits_evaluation = False
        self._has_reported = False
        self._lacked_metric = False
        self._seen: set[str] = set()
        self._params = dict(params or {})
        self._signal: CheckpointSignal | None = None

    def begin(self, params: Mapping[str, object] | None = None) -> None:
        """The training starts: report its hyper-parameters, and listen for the signal that asks for a checkpoint."""
        self.announce(params)
        self.listen()

    def announce(self, params: Mapping[str, object] | None = None) -> None:
        """The training starts: report its hyper-parameters."""
        self._evaluation, self._awaits_evaluation = None, False
        self._has_reported, self._lacked_metric, self._seen = False, False, set()
        tell({**(params or {}), **self._params})

    def listen(self) -> None:
        """Listen for the signal; for processes that report nothing. srun gives it to all, and it ends who does not."""
        if threading.current_thread() is not threading.main_thread():
            sys.stderr.write("explsched: training outside the main thread: requests for checkpoints are not noticed\n")
            return
        self._signal = CheckpointSignal()
        self._signal.__enter__()

    def await_evaluation(self) -> None:
        """The training will be evaluated: report nothing before, unless `value` names it."""
        self._awaits_evaluation = True

    def end(self) -> None:
        """The training is over. A request may still come, while the model is evaluated or saved: it ends nobody.

        A training of which no value was reported says what there was.
        """
        if self._seen and not self._has_reported:
            name = self._value or _metric()
            self._warn(f"nothing was reported, for there was no {name} among: {_listed(self._seen)}")
        self._seen = set()
        if self._signal is not None:
            self._signal.__exit__(None, None, None)
            self._signal = None
            number = signal_number(signal_name(os.environ))
            if number in _PASSED_ON_BY_SRUN and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)

    def report(self, step: int, values: Mapping[str, object], total_steps: float | None = None) -> bool:
        """Report the job's metric if it is among the trainer's values; whether it was. Never raises for a value."""
        metric = _metric()
        self._seen.update(values)
        name = self._value or self._name(metric, values)
        try:
            number = float(values.get(name))  # type: ignore[arg-type]  # tensors with one element; what is none raises
        except (TypeError, ValueError, OverflowError):
            return False
        tell_script()
        known = total_steps is not None and 1 <= total_steps < float("inf")
        report_values(step, {metric: number}, int(total_steps or 0) if known else None)
        self._has_reported = True
        return True

    def _name(self, metric: str, values: Mapping[str, object]) -> str:
        """The trainer's name of the metric; "" if its values may not be those that are to be reported.

        A curve has values of one kind: the best of a mixed one would be a loss on the training data.
        """
        if self._evaluation is None:
            names = (prefix + metric for prefix in _EVALUATION)
            self._evaluation = next((name for name in names if values.get(name) is not None), None)
        if others := [name for name in values if name.startswith(_EVALUATION)]:
            self._awaits_evaluation = False
            if self._evaluation is None and not self._lacked_metric:
                self._lacked_metric = True
                self._warn(f"{_listed(others)}: none is the evaluation's {metric}; that of the training counts")
        return self._evaluation or ("" if self._awaits_evaluation else metric)

    def _warn(self, text: str) -> None:
        warn("explsched", f"{text}; another name: ExplschedCallback(NAME)")

    @property
    def is_checkpoint_wanted(self) -> bool:
        """Whether the scheduler asks for a checkpoint."""
        return self._signal is not None and self._signal.requested

    def agreed(self, any_process: Callable[[bool], bool] = any_rank) -> bool:
        """As `CheckpointSignal.agreed`, whether or not this process could listen: all that train together call it."""
        return (self._signal or CheckpointSignal()).agreed(any_process)

    def answered(self) -> None:
        """Nothing more is to be done here: another process reports the checkpoint, or none could be saved."""
        if self._signal is not None:
            self._signal.requested = False

    def saved(self, step: int) -> None:
        """The checkpoint of that step is on disk."""
        if self._signal is not None:
            self._signal.saved(step)


def _metric() -> str:
    return os.environ.get(METRIC.variable) or "loss"


def _listed(names: Iterable[str]) -> str:
    """As many as fit a line of a log."""
    text = ", ".join(sorted(names))
    return text if len(text) <= _LONGEST_LIST else f"{text[:_LONGEST_LIST]}..."
