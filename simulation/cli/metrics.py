"""`sexplsched metrics`: figures of a site's own history."""

from __future__ import annotations

import json
from pathlib import Path

import click

from explsched.cli.options import json_option
from simulation.cli.outputs import figure_lines, jobs_option, plot_option, write_files
from simulation.cli.replay_options import cluster_option, report_rejected
from simulation.results import history
from simulation.results.metrics import as_dict, measure
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import require_all_rows

_EXAMPLES = """\b
example:
  sexplsched metrics --from-sacct history.txt --cluster 8x8
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--from-sacct",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="Output of sacct; `sexplsched trace --help` shows the command line.",
)
@cluster_option(required=False)
@click.option("--strict", "is_strict", is_flag=True, help="Fail if any row cannot be used.")
@plot_option
@jobs_option
@json_option
def metrics(
    path: Path,
    cluster: str | None,
    is_strict: bool,  # noqa: FBT001  click passes by name
    plot_path: Path | None,
    jobs_path: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Measure what happened on a cluster, from sacct's output.

    The figures are those of `simulate` and `compare`. Without --cluster, utilisation and fairness are relative to the
    most GPUs that were ever held at once.
    """
    past = history.read(path, read_cluster(cluster) if cluster else None)
    if is_strict:
        require_all_rows(path, past.rejected)
    report_rejected(path, past.rejected)
    figures = measure(past.outcome)
    write_files([past.outcome], plot_path, jobs_path)
    gpus = past.outcome.cluster.gpus
    if as_json:
        about = {"peak_gpus": past.peak_gpus, "gpus": gpus, "rejected": len(past.rejected)}
        click.echo(json.dumps({"policy": history.NAME, **as_dict(figures), **about}, indent=1))
        return
    click.echo(f"{path} on {gpus:,} GPUs{'' if cluster else ', the most that were held at once'}")
    click.echo("\n".join(figure_lines(figures)))
