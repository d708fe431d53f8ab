"""Pictures of outcomes: JCT distribution, utilisation over time, and a Gantt chart of small traces.

matplotlib is an optional dependency and slow to import; it is loaded when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from explsched.atomic_file import output
from explsched.errors import ExplschedError, with_extra
from simulation.results.metrics import utilisation_series
from simulation.results.outcome import Ending, JobRecord, TraceOutcome, span_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
GANTT_MAX_JOBS = 60
_INTERVALS = 240
_MOST_POINTS = 2000
_SMALL = 6
# Okabe and Ito's palette, safe for colour-blind readers; its yellow is too faint for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_WAITING = "#CCCCCC"
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


class PlotError(ExplschedError):
    """No picture: matplotlib is missing, the suffix is none of `SUFFIXES`, or the file cannot be written."""


def check(path: Path) -> None:
    """Raise `PlotError` if no picture could be drawn to this path, without drawing. Cheap: imports nothing."""
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"{path}: unknown kind of picture {path.suffix!r}; accepted: {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise PlotError(f"{path}: pictures need matplotlib: {with_extra('plots')}")


def draw(outcomes: Sequence[TraceOutcome], path: Path) -> None:
    """Write one picture of all outcomes, overlaid; with Gantt charts if none has more than `GANTT_MAX_JOBS` jobs.

    Raises `PlotError`.
    """
    check(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    if has_gantt(outcomes):
        figure.set_size_inches(max(11.0, 4.0 * len(outcomes)), 9.0)
        grid = figure.add_gridspec(2, 1)
        above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
        left, right = above.subplots(1, 2)
        _gantt(below.subplots(1, len(outcomes), sharex=True, squeeze=False)[0], outcomes)
    else:
        left, right = figure.subplots(1, 2)
    _distribution(left, outcomes)
    _utilisation(right, outcomes)
    save(figure, path)


def has_gantt(outcomes: Sequence[TraceOutcome]) -> bool:
    """Whether the picture of these outcomes shows single jobs."""
    return bool(outcomes) and all(0 < len(outcome.jobs) <= GANTT_MAX_JOBS for outcome in outcomes)


def draw_counts(series: Mapping[str, tuple[Sequence[float], Sequence[int]]], title: str, path: Path) -> None:
    """Write one picture of counts over time: (seconds, counts) by name, each count holding until the next moment.

    Raises `PlotError`.
    """
    check(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    longest_s = max((times[-1] for times, _ in series.values() if times), default=0.0)
    unit_s, unit = next(((size_s, name) for size_s, name in _UNITS if longest_s >= 2 * size_s), _UNITS[-1])
    for (colour, dash), (name, (times, counts)) in zip(_styles(), series.items(), strict=False):
        axes.step(np.asarray(times) / unit_s, counts, where="post", label=name, color=colour, linestyle=dash)
    axes.set(xlabel=f"time ({unit})", ylabel=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a picture. Raises `PlotError`."""
    try:
        with output(path) as file:
            figure.savefig(file, dpi=120, format=path.suffix.lower()[1:])
    except OSError as error:
        raise PlotError(f"{path}: cannot be written: {error.strerror}") from error


def _distribution(axes: Axes, outcomes: Sequence[TraceOutcome]) -> None:
    scale = "linear"  # unless there is something to draw: matplotlib draws no logarithmic axis without
    for (colour, dash), outcome in zip(_styles(), outcomes, strict=False):
        ended = [job for job in outcome.jobs if job.ending is not Ending.UNFINISHED]
        jct_s = np.sort([job.end_s - job.submit_s for job in ended])
        rows = np.flatnonzero(jct_s > 0)  # a logarithmic axis has no place for the others, but they count
        scale = "log" if rows.size else scale
        rows = rows[np.unique(np.linspace(0, rows.size - 1, min(rows.size, _MOST_POINTS)).astype(int))]
        axes.step(
            jct_s[rows],
            100 * (rows + 1) / max(len(outcome.jobs), 1),
            where="post",
            color=colour,
            ls=dash,
            label=outcome.policy,
        )
    axes.set(xlabel="job completion time (s)", ylabel="jobs that took at most that long (%)", ylim=(0, 101))
    axes.set_xscale(scale)
    axes.set_title("Job completion time")
    axes.grid(alpha=0.3)
    if outcomes:
        axes.legend(fontsize="small")


def _utilisation(axes: Axes, outcomes: Sequence[TraceOutcome]) -> None:
    second, unit = _time_unit(outcomes)
    for (colour, dash), outcome in zip(_styles(), outcomes, strict=False):
        edges_s, share = utilisation_series(outcome, _INTERVALS)
        if share:
            axes.stairs(
                np.multiply(share, 100),
                np.divide(edges_s, second),
                baseline=None,
                color=colour,
                ls=dash,
            )
    axes.set(xlabel=f"time ({unit})", ylabel="GPUs held (%)", ylim=(0, 101))
    axes.set_title("GPU utilisation")  # the colours are those of the picture beside it
    axes.grid(alpha=0.3)


def _gantt(charts: Sequence[Axes], outcomes: Sequence[TraceOutcome]) -> None:
    second, unit = _time_unit(outcomes)
    for (colour, _dash), axes, outcome in zip(_styles(), charts, outcomes, strict=False):
        rows = range(len(outcome.jobs))
        submit = [job.submit_s / second for job in outcome.jobs]
        start = [(job.start_s if job.started else job.end_s) / second for job in outcome.jobs]
        end = [job.end_s / second for job in outcome.jobs]
        axes.barh(rows, np.subtract(start, submit), left=submit, color=_WAITING)
        axes.barh(rows, np.subtract(end, start), left=start, color=colour)
        for row, job in enumerate(outcome.jobs):
            axes.annotate(_note(job), (end[row], row), (2, 0), textcoords="offset points", va="center", fontsize=_SMALL)
        axes.set_yticks(rows, [str(job.job_id) for job in outcome.jobs], fontsize=_SMALL)
        axes.margins(x=0.2)  # room for the notes
        # Below the chart, because a legend would hide jobs.
        axes.set_xlabel(f"time ({unit}); grey: waits, coloured: first start to end")
        axes.set_ylim(len(outcome.jobs) - 0.4, -0.6)
        axes.set_title(outcome.policy)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    charts[0].set_ylabel("job")


def _note(job: JobRecord) -> str:
    preempted = f", preempted {job.preemptions}x" if job.preemptions else ""
    unfinished = ", unfinished" if job.ending is Ending.UNFINISHED else ""
    return f"{job.gpus} GPU{'' if job.gpus == 1 else 's'}{preempted}{unfinished}"


def _styles() -> Iterator[tuple[str, str]]:
    """Line styles without end: all colours solid, then all dashed, and so on."""
    return cycle((colour, dash) for dash in _DASHES for colour in _COLOURS)


def _time_unit(outcomes: Sequence[TraceOutcome]) -> tuple[float, str]:
    """Seconds of the unit in which the longest of these spans reads well, and its name."""
    last_s = max((span_s(outcome)[1] for outcome in outcomes), default=0.0)
    return next(((second, unit) for second, unit in _UNITS if last_s >= 2 * second), _UNITS[-1])
