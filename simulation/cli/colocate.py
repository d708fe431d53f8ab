"""`sexplsched colocate`: GPUs that placements need when inference and training share them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click
from msgspec import Struct, to_builtins

from explsched.cli import input_file, json_option, output_file
from explsched.errors import PolicyError
from explsched.tables import Column, is_terminal, lines, room
from simulation.cli.outputs import picture_file
from simulation.colocation.events import InstanceEvent, InstanceTrace, generate, read_events, write_events
from simulation.colocation.instance import GpuLoads, InstanceKind
from simulation.colocation.placements import SHARE_PLACEMENTS, share_placement
from simulation.colocation.simulator import Colocation
from simulation.colocation.simulator import colocate as run
from simulation.traces.trace import TraceError

_EXAMPLES = """\b
example:
  sexplsched colocate --instances 3200 --nodes 1000
"""


class PlacementRow(Struct, frozen=True):
    """One placement. GPUs are those in use; `ratio` is `max_gpus` over that of the first placement.

    `moves` of running instances moved `moved_gib` of memory in all, and `behind_moves` starts waited for them.
    """

    placement: str
    max_gpus: int
    mean_gpus: float
    ratio: float | None
    sm_fragmentation: float
    memory_fragmentation: float
    started: int
    refused: int
    refused_training: int
    events: int
    moves: int
    moved_gib: float
    behind_moves: int
    cpu_s: float


def _names(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        try:
            share_placement(name)
        except PolicyError as error:
            raise click.BadParameter(str(error)) from error
    return names


@click.command(epilog=_EXAMPLES)
@click.option(
    "--events",
    "events_path",
    type=click.Path(path_type=Path),
    callback=input_file,
    help="File of instance events (JSON lines).",
)
@click.option("--instances", type=click.IntRange(1, 1_000_000), help="Generate events of this many instances instead.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed of generated events."
)
@click.option(
    "--write-events",
    "written_path",
    type=click.Path(path_type=Path),
    callback=output_file,
    help="Also write the events to this file.",
)
@click.option("--nodes", default=1000, show_default=True, type=click.IntRange(1, 100_000), help="Number of nodes.")
@click.option("--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 64), help="GPUs per node.")
@click.option(
    "--gpu-memory-gib", default=40, show_default=True, type=click.IntRange(1, 4096), help="Memory of each GPU."
)
@click.option(
    "--placement",
    "placements",
    default=",".join(SHARE_PLACEMENTS),
    show_default=True,
    callback=_names,
    help="Comma-separated; the first is the baseline.",
)
@click.option("--strict", is_flag=True, help="Fail if any line of the file cannot be used.")
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=picture_file,
    help="Plot the GPUs in use over time to this .png, .svg or .pdf.",
)
@json_option
def colocate(
    *,
    events_path: Path | None,
    instances: int | None,
    seed: int,
    written_path: Path | None,
    nodes: int,
    gpus_per_node: int,
    gpu_memory_gib: int,
    placements: Sequence[str],
    strict: bool,
    plot_path: Path | None,
    as_json: bool,
) -> None:
    """Compare placements of instances that share GPUs.

    Inference and training instances start and end as the events say. An instance that does not fit is refused
    and not retried.
    """
    if (events_path is None) == (instances is None):
        raise click.UsageError("give either --events FILE or --instances N")
    trace = read_events(events_path) if events_path else generate(instances or 0, seed)
    _report_rejected(trace, events_path, strict=strict)
    if written_path:
        write_events(written_path, trace.events)
    rows: list[PlacementRow] = []
    in_use: dict[str, tuple[Sequence[float], Sequence[int]]] = {}
    for name in placements:
        began_s = time.process_time()
        with _progress(name, trace.events) as events:
            found = run(events, share_placement(name), GpuLoads.uniform(nodes, gpus_per_node, 1024 * gpu_memory_gib))
        in_use[name] = [use.time_s for use in found.use], [use.active_gpus for use in found.use]
        rows.append(
            _row(name, found, rows[0].max_gpus if rows else found.max_active_gpus, time.process_time() - began_s)
        )
    if any(row.refused for row in rows):
        click.echo("warning: instances were refused, so placements are compared at different work (--nodes)", err=True)
    if as_json:
        shape = {"nodes": nodes, "gpus_per_node": gpus_per_node, "gpu_memory_gib": gpu_memory_gib}
        click.echo(json.dumps({**shape, "placements": [to_builtins(row) for row in rows]}, indent=1))
    else:
        click.echo(_table(rows))
    if plot_path is not None:
        from simulation.results import plots

        plots.draw_counts(in_use, "GPUs in use", plot_path)


def _progress(name: str, events: Sequence[InstanceEvent]) -> AbstractContextManager[Iterable[InstanceEvent]]:
    """The events, with a progress bar if stderr is a terminal."""
    if not is_terminal(sys.stderr):
        return nullcontext(events)
    return click.progressbar(events, label=f"{name:<13}", file=sys.stderr, update_min_steps=100)


def _report_rejected(trace: InstanceTrace, path: Path | None, *, strict: bool) -> None:
    for rejected in trace.rejected[:10]:
        click.echo(f"{path}: line {rejected.line} left out: {rejected.reason}", err=True)
    if trace.rejected:
        summary = f"{path}: {len(trace.rejected)} lines left out, {len(trace.events)} events read"
        if strict:
            raise TraceError(f"{summary} (--strict)")
        click.echo(summary, err=True)


def _row(name: str, found: Colocation, of_first: int, cpu_s: float) -> PlacementRow:
    return PlacementRow(
        placement=name,
        max_gpus=found.max_active_gpus,
        mean_gpus=found.mean_active_gpus,
        ratio=found.max_active_gpus / of_first if of_first else None,
        sm_fragmentation=found.mean_sm_fragmentation,
        memory_fragmentation=found.mean_memory_fragmentation,
        started=found.started,
        refused=len(found.refused),
        refused_training=found.refused_of(InstanceKind.TRAINING),
        events=found.events,
        moves=found.moves,
        moved_gib=found.moved_mib / 1024,
        behind_moves=found.behind_moves,
        cpu_s=cpu_s,
    )


def _table(rows: Sequence[PlacementRow]) -> str:
    titles = ("GPUS", "RATIO", "MEAN", "SM_FRAG", "MEM_FRAG", "REFUSED", "MOVES", "MOVED_GIB")
    columns = (Column("PLACEMENT"), *(Column(title, ">") for title in titles))
    return "\n".join(lines(columns, map(_cells, rows), room()))


def _cells(row: PlacementRow) -> tuple[object, ...]:
    return (
        row.placement,
        row.max_gpus,
        None if row.ratio is None else f"{row.ratio:.3f}",
        f"{row.mean_gpus:.1f}",
        f"{row.sm_fragmentation:.3f}",
        f"{row.memory_fragmentation:.3f}",
        row.refused,
        row.moves,
        f"{row.moved_gib:.0f}",
    )
