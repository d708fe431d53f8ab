"""What commands of the laboratory print and write: figures as text, pictures, tables of jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from explsched import tables
from explsched.cli import output_file
from simulation.results.metrics import Metrics, as_dict, figures

if TYPE_CHECKING:
    from simulation.results.outcome import TraceOutcome


_MISSING = "-"
_GAP = "  "


class PolicyColumn(Struct, frozen=True):
    """The figures of one policy, by name; None where one has no meaning."""

    policy: str
    values: Mapping[str, float | None]


def figure_lines(metrics: Metrics) -> list[str]:
    """One line for each figure: name, value, unit and meaning."""
    values = as_dict(metrics)
    rows = ((figure.name, number(values[figure.name]), figure.unit, figure.text) for figure in figures())
    columns = (tables.Column("FIGURE"), tables.Column("VALUE", ">"), tables.Column("UNIT"), tables.Column("MEANING"))
    return tables.lines(columns, rows, tables.room(), heading=False)


def ratio(value: float | None, first: float | None) -> float | None:
    """A figure divided by the first policy's; None unless both are known and the first is above 0, the other not below.

    Only `wasted_gpu_h` can be below 0, and a ratio to or from such a value has no meaning.
    """
    return None if value is None or first is None or first <= 0 or value < 0 else value / first


def table(columns: Sequence[PolicyColumn], width: int | None) -> list[str]:
    """A row for each figure that some policy has, a column for each policy, all but the first with ratios to the first.

    Policies that find no room in `width` characters follow in tables below; None is any number of characters.
    """
    first = columns[0]
    names = [name for name in first.values if any(column.values[name] is not None for column in columns)]
    label_width = max(len(name) for name in names)
    blocks: list[list[PolicyColumn]] = [[]]
    left = 0.0
    for column in columns:
        needed = len(_GAP) + max(len(column.policy), *(len(_cell(column, first, name)) for name in names))
        if needed > left or not blocks[0]:
            if blocks[-1]:
                blocks.append([])
            left = (math.inf if width is None else width) - label_width
        blocks[-1].append(column)
        left -= needed
    shown = (_block(block, first, names) for block in blocks)
    return "\n\n".join("\n".join(lines) for lines in shown).splitlines()


def _block(block: Sequence[PolicyColumn], first: PolicyColumn, names: Sequence[str]) -> list[str]:
    columns = (tables.Column(""), *(tables.Column(column.policy, ">") for column in block))
    rows = ((name, *(_cell(column, first, name) for column in block)) for name in names)
    return tables.lines(columns, rows, None)


def number(value: float | None) -> str:
    """A figure in readable form: four significant digits, or all digits before the point."""
    if value is None:
        return _MISSING
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cell(column: PolicyColumn, first: PolicyColumn, name: str) -> str:
    text = number(column.values[name])
    if column is first:
        return text
    relative = ratio(column.values[name], first.values[name])
    shown = _MISSING if relative is None else f"({relative:.0f}x)" if relative >= 100 else f"({relative:.2f}x)"
    return f"{text} {shown:>8}"


def picture_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that cannot be drawn before a long run starts. A click callback."""
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
    help="Plot JCTs, utilisation and, for up to 60 jobs, a Gantt chart to this .png, .svg or .pdf.",
)


jobs_option = click.option(
    "--jobs-csv",
    "jobs_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="Write one row per job to this CSV file.",
)


cluster_csv_option = click.option(
    "--cluster-csv",
    "series_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="Write GPUs and jobs over time to this CSV file, a row for each change.",
)


def write_files(
    outcomes: Sequence[TraceOutcome], plot_path: Path | None, jobs_path: Path | None, series_path: Path | None = None
) -> None:
    """Write the picture of these outcomes, and jobs and cluster of the first one as CSV, if requested.

    Called last: if a file cannot be written, the figures of a long run have been printed.
    """
    try:
        if series_path is not None:
            from simulation.results.outcome import write_cluster_csv

            write_cluster_csv(outcomes[0], series_path)
        if jobs_path is not None:
            from simulation.results.outcome import write_jobs_csv

            write_jobs_csv(outcomes[0], jobs_path)
        if plot_path is not None:
            from simulation.results import plots

            plots.draw(outcomes, plot_path)
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
