"""What commands of the laboratory print and write: figures as text, pictures, tables of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from simulation.results.metrics import Metrics, as_dict, figures

if TYPE_CHECKING:
    from simulation.results.outcome import TraceOutcome


_MISSING = "-"
_GAP = "  "


class Column(Struct, frozen=True):
    """The figures of one policy, by name; None where one has no meaning."""

    policy: str
    values: Mapping[str, float | None]


def figure_lines(metrics: Metrics) -> list[str]:
    """One line for each figure: name, value, unit and meaning."""
    values = as_dict(metrics)
    return [
        f"{figure.name:<22} {number(values[figure.name]):>10} {figure.unit:<7} {figure.text}" for figure in figures()
    ]


def ratio(value: float | None, first: float | None) -> float | None:
    """A figure divided by the first policy's; None unless both are known and the first is above 0, the other not below.

    Only `wasted_gpu_h` can be below 0, and a ratio to or from such a value has no meaning.
    """
    return None if value is None or first is None or first <= 0 or value < 0 else value / first


def table(columns: Sequence[Column], width: int) -> list[str]:
    """A row for each figure that some policy has, a column for each policy, all but the first with ratios to the first.

    Policies that find no room in `width` characters follow in tables below.
    """
    first = columns[0]
    names = [name for name in first.values if any(column.values[name] is not None for column in columns)]
    label_width = max(len(name) for name in names)
    blocks: list[list[list[str]]] = [[]]
    for column in columns:
        texts = [column.policy, *(_cell(column, first, name) for name in names)]
        cell_width = max(len(text) for text in texts)
        cells = [f"{text:>{cell_width}}" for text in texts]
        if blocks[-1] and label_width + sum(len(_GAP) + len(c[0]) for c in [*blocks[-1], cells]) > width:
            blocks.append([])
        blocks[-1].append(cells)
    labels = [f"{name:<{label_width}}" for name in ("", *names)]
    tables = ([_GAP.join(row) for row in zip(labels, *block, strict=True)] for block in blocks)
    return "\n\n".join("\n".join(lines) for lines in tables).splitlines()


def number(value: float | None) -> str:
    """A figure in readable form: four significant digits, or all digits before the point."""
    if value is None:
        return _MISSING
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cell(column: Column, first: Column, name: str) -> str:
    text = number(column.values[name])
    if column is first:
        return text
    relative = ratio(column.values[name], first.values[name])
    shown = _MISSING if relative is None else f"({relative:.0f}x)" if relative >= 100 else f"({relative:.2f}x)"
    return f"{text} {shown:>8}"


def output_file(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file in a missing directory before a long run starts. A click callback."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{path}: directory {path.absolute().parent} does not exist")
    return path


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


def write_files(outcomes: Sequence[TraceOutcome], plot_path: Path | None, jobs_path: Path | None) -> None:
    """Write the picture of these outcomes, and the jobs of the first one as CSV, if requested."""
    try:
        if jobs_path is not None:
            from simulation.results.outcome import write_jobs_csv

            write_jobs_csv(outcomes[0], jobs_path)
        if plot_path is not None:
            from simulation.results import plots

            plots.draw(outcomes, plot_path)
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
