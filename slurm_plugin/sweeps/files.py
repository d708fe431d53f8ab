"""The results of a sweep as files: a table for spreadsheets, a trace for the simulator, a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from explsched.atomic_file import output
from explsched.errors import ExplschedError, with_extra
from explsched.parameters import listed, shown
from explsched.tables import csv_text
from sched_policy.model import Direction
from slurm_plugin.sweeps.results import SweepResults, SweepTraining

PICTURES = (".png", ".svg", ".pdf")
TRACE_COLUMNS = ("job_id", "submit_s", "gpus", "run_s", "sweep", "curve", "user", "metric", "direction", "params")
"""As `simulation.traces.formats.own` reads them; docs/traces.md explains them."""
_FIELDS = (
    *("job", "state", "gpus", "step", "total_steps", "best", "gpu_h", "saved_gpu_h", "restarts", "reason"),
    "diverged",
)
_LEAST_REPORTS = 2


class SweepFileError(ExplschedError):
    """A file of results cannot be made: nothing to export, matplotlib is missing, the file cannot be written."""


def table(found: SweepResults) -> str:
    """CSV with a line for each training, best first, and a column `param.NAME` for each parameter."""
    names = sorted({name for training in found.trainings for name, _ in training.params})
    rows: list[list[object]] = [[*_FIELDS, *(f"param.{name}" for name in names)]]
    for training in found.trainings:
        told = {name: shown(value) for name, value in training.params}
        own = {name: getattr(training, name) for name in _FIELDS}
        own |= {name: own[name] and round(own[name], 6) for name in ("gpu_h", "saved_gpu_h")}
        own["diverged"] = shown(training.diverged)
        rows.append([*own.values(), *(told.get(name, "") for name in names)])
    return csv_text(rows)


def trace(found: SweepResults) -> tuple[str, list[str]]:
    """The sweep as a trace of the simulator's format `sweep`, and what it lacks. Raises `SweepFileError`.

    A trace has no word for a training that has diverged: it would be the best, by what it reported before.
    """
    reported = [training for training in found.trainings if training.gpus and len(training.curve) >= _LEAST_REPORTS]
    usable = [training for training in reported if not training.diverged]
    if not usable:
        raise SweepFileError(
            f"sweep {found.sweep!r}: no training with GPUs has reported {found.metric} twice"
            + " without diverging" * bool(reported)
            + ": nothing to export"
        )
    began_s = min(training.submit_s for training in usable)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TRACE_COLUMNS)
    for training in sorted(usable, key=lambda training: (training.submit_s, training.job)):
        curve = " ".join(f"{point.step}:{point.run_s:.3f}:{point.value!r}" for point in training.curve)
        told = json.dumps(dict(training.params))
        start = (training.job, round(training.submit_s - began_s, 3), training.gpus, round(_whole_s(training), 3))
        writer.writerow([*start, found.sweep, curve, found.user, found.metric, found.direction.value, told])
    return text.getvalue(), list(_lacks(found, reported, usable))


def draw(found: SweepResults, path: Path) -> None:
    """A picture: each training's values over its GPU-hours, and the best so far over all of them.

    Raises `SweepFileError` for a suffix that is none of `PICTURES`, without matplotlib, and if it cannot be written.
    """
    if path.suffix.lower() not in PICTURES:
        raise SweepFileError(f"{path}: unknown kind of picture {path.suffix!r}; accepted: {', '.join(PICTURES)}")
    if find_spec("matplotlib") is None:
        raise SweepFileError(f"{path}: pictures need matplotlib: {with_extra('plots')}")
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # two dollars in a user's name for something are no formula
        picture = _picture(found, path.suffix.lower()[1:])
    write(path, picture)


def _picture(found: SweepResults, kind: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    own, total = figure.subplots(1, 2, sharey=True)
    best = found.best
    for training in found.trainings:
        is_best = training is best
        label = f"best: job {training.job}" + (f" ({listed(training.params)})" if training.params else "")
        own.plot(
            [training.held_gpus * point.run_s / 3600 for point in training.curve],
            [point.value for point in training.curve],
            color="#D55E00" if is_best else "#999999",
            linewidth=1.6 if is_best else 0.7,
            zorder=2 if is_best else 1,
            label=label[:80] if is_best else None,
        )
    spent, values = zip(*best_so_far(found), strict=True) if best else ((), ())
    total.step(spent, values, where="post", color="#0072B2")
    own.set(xlabel="GPU-hours of a training", ylabel=found.metric, title=f"sweep {found.sweep}")
    total.set(xlabel="GPU-hours of all trainings, one after the other by their reports", title="best so far")
    if best:
        own.legend(fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, format=kind)
    return picture.getvalue()


def write(path: Path, content: bytes) -> None:
    """Write a file at once or not at all. Raises `SweepFileError`."""
    try:
        with output(path) as file:
            file.write(content)
    except OSError as error:
        raise SweepFileError(f"{path}: cannot be written: {error.strerror}") from error


def _whole_s(training: SweepTraining) -> float:
    """Run time to its last step, as far as its steps tell; else what it has run, which may go on after its reports."""
    told_s = None if training.state == "done" else training.told_s
    return max(training.curve[-1].run_s, training.run_s, told_s or 0.0, 0.001)


def _lacks(found: SweepResults, reported: list[SweepTraining], usable: list[SweepTraining]) -> Iterator[str]:
    count = len(found.trainings)
    if without := sum(not training.gpus for training in found.trainings):
        yield f"{without} of {count} trainings are left out: they have no GPUs"
    if left_out := count - without - len(reported):
        yield f"{left_out} of {count} trainings are left out: they did not report {found.metric} twice"
    if diverged := len(reported) - len(usable):
        yield f"{diverged} of {count} trainings are left out: they diverged, and what they reported does not count"
    unfinished = [training for training in usable if training.state != "done"]
    if cut := sum(training.curve[-1].run_s < 0.99 * _whole_s(training) for training in unfinished):
        yield f"{cut} of {len(usable)} curves end before their training: what these would have reached is not known"
    if unknown := sum(not training.params for training in usable):
        yield f"{unknown} of {len(usable)} trainings have no hyper-parameters: strategies that use them learn nothing"


def best_so_far(found: SweepResults) -> Iterator[tuple[float, float]]:
    """(GPU-hours of all trainings, the best value by then), taking the reports in the order of their run time.

    Trainings that have diverged cost GPU-hours, and are never the best.
    """
    better = min if found.direction is Direction.MIN else max
    reports = sorted((p.run_s, t.job, t.held_gpus, t.diverged, p.value) for t in found.trainings for p in t.curve)
    before: dict[int, float] = {}
    spent, best = 0.0, None
    for run_s, job, gpus, diverged, value in reports:
        spent += gpus * (run_s - before.get(job, 0.0)) / 3600
        before[job] = run_s
        if not diverged:
            best = value if best is None else better(best, value)
        if best is not None:
            yield spent, best
