"""The files that `simulate`, `compare` and `metrics` write besides what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from simulation.results.outcome import TraceOutcome


def output_file(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written after a long run. A click callback."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{path}: there is no directory {path.absolute().parent}")
    return path


def picture_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn after a long run. A click callback."""
    if path is not None:
        from simulation.results import plots

        try:
            plots.check(path)
        except plots.PlotError as error:
            raise click.BadParameter(str(error)) from error
    return output_file(ctx, param, path)


plot_option = click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=picture_file,
    help="Draw JCTs, utilisation and, for few jobs, a Gantt chart to this .png, .svg or .pdf.",
)


jobs_option = click.option(
    "--jobs-csv",
    "jobs_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="Write what became of each job to this file.",
)


def write_files(outcomes: Sequence[TraceOutcome], plot_path: Path | None, jobs_path: Path | None) -> None:
    """Write the picture of these outcomes, and the table of the first one's jobs, where asked for."""
    try:
        if jobs_path is not None:
            from simulation.results.outcome import write_jobs_csv

            write_jobs_csv(outcomes[0], jobs_path)
        if plot_path is not None:
            from simulation.results import plots

            plots.draw(outcomes, plot_path)
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
