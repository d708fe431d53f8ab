"""`sexplsched cluster`: a private, real Slurm cluster in a directory, for trying out and for tests."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
from msgspec.structs import fields

from explsched.cli import Commands, alternative, examples, json_option
from explsched.tables import Column, lines, room
from slurm_plugin.devcluster import Cluster, ClusterHealth, ClusterSpec, ProductState
from slurm_plugin.devcluster import down as take_down
from slurm_plugin.devcluster import up as bring_up

_EXAMPLES = """\b
examples:
  sexplsched cluster up --nodes 4 --gpus 8 --dir /tmp/cluster
  eval "$(sexplsched cluster env --dir /tmp/cluster)"; sinfo
  sexplsched cluster down --dir /tmp/cluster
"""
_DEFAULT = {field.name: field.default for field in fields(ClusterSpec)}


def _settings(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Split KEY=VALUE, as for slurm.conf. A file to include is looked for from here."""
    pairs: list[tuple[str, str]] = []
    for value in values:
        key, equals, setting = value.partition("=")
        if not (key.isidentifier() and equals) or "\n" in setting:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, such as MinJobAge=10")
        pairs.append((key, str(Path(setting).absolute()) if key.lower() == "include" else setting))
    return tuple(pairs)


_directory = click.option(
    "--dir",
    "directory",
    required=True,
    envvar="SEXPLSCHED_CLUSTER_DIR",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="Directory that holds everything of the cluster.",
)


@click.group(cls=Commands, epilog=_EXAMPLES)
def cluster() -> None:
    """A private, real Slurm cluster on this host, in one directory.

    Its nodes have fake GPUs, and explsched runs beside Slurm. Nothing outside the directory is changed. Needs root.
    The environment variable EXPLSCHED_SLURM_PREFIX names the installation prefix of a Slurm built from source, which
    takes `configure --enable-multiple-slurmd` for srun to work across nodes.
    """


@cluster.command(
    epilog=examples(
        "sexplsched cluster up --dir /tmp/cluster --nodes 4 --gpus 8",
        "sexplsched cluster up --dir /tmp/cluster --accounting --set MinJobAge=10",
    )
)
@_directory
@click.option("--nodes", default=_DEFAULT["nodes"], show_default=True, help="Number of nodes.")
@click.option("--gpus", default=_DEFAULT["gpus_per_node"], show_default=True, help="GPUs per node.")
@click.option("--shards", default=_DEFAULT["shards_per_node"], show_default=True, help="Shards per node; 0 for none.")
@click.option(
    "--cpus-per-node", default=_DEFAULT["cpus_per_node"], show_default=True, help="CPUs that each node reports."
)
@click.option(
    "--memory-mib-per-node",
    default=_DEFAULT["memory_mib_per_node"],
    show_default=True,
    help="Memory that each node reports, MiB.",
)
@click.option("--accounting", is_flag=True, help="Also start MariaDB and slurmdbd, for sacct and gres/gpu TRES.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    callback=_settings,
    multiple=True,
    help="Line for slurm.conf; repeatable, the last one counts.",
)
@alternative(
    "--no-daemon",
    "product",
    ProductState.INSTALLED,
    "Start no daemon: jobs can report and commands work, but Slurm alone schedules.",
)
@alternative("--slurm-only", "product", ProductState.ABSENT, "Start Slurm only, without explsched.")
@json_option
def up(
    *,
    directory: Path,
    nodes: int,
    gpus: int,
    shards: int,
    cpus_per_node: int,
    memory_mib_per_node: int,
    accounting: bool,
    settings: tuple[tuple[str, str], ...],
    product: ProductState | None,
    as_json: bool,
) -> None:
    """Start a cluster with explsched. Returns when all nodes are idle.

    It has the spool, the configuration and the daemon.
    """
    shape = (nodes, gpus, shards, cpus_per_node, memory_mib_per_node)
    spec = ClusterSpec(*shape, accounting, settings, product=product or ProductState.RUNNING)
    started = bring_up(spec, directory, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(_as_json(started))
        return
    if started.product:
        click.echo(f"explsched is configured by {started.product.config}, logs are in {started.layout.logs}.")
    click.echo(f"{nodes} nodes with {gpus} GPUs each are idle. To use them in this shell:")
    click.echo(f'  eval "$(sexplsched cluster env --dir {shlex.quote(str(started.layout.root))})"')


@cluster.command(epilog=examples("sexplsched cluster down --dir /tmp/cluster"))
@_directory
def down(directory: Path) -> None:
    """Stop a cluster with all its jobs, and remove its files.

    Also what is left of one whose daemons have died.
    """
    take_down(directory)


@cluster.command(epilog=examples("sexplsched cluster status --dir /tmp/cluster"))
@_directory
@json_option
def status(*, directory: Path, as_json: bool) -> None:
    """Show whether a cluster runs. Exits 1 unless all of its daemons do."""
    found = Cluster.load(directory)
    now = found.status()
    if as_json:
        click.echo(_as_json(found))
    else:
        click.echo(f"{found.layout.root}: {now.state}")
        rows = [
            (each.name, state, each.pid) for state, some in (("alive", now.alive), ("dead", now.dead)) for each in some
        ]
        for line in lines((Column("DAEMON"), Column("STATE"), Column("PID", ">")), rows, room()):
            click.echo(line)
        if now.state is not ClusterHealth.RUNNING:
            click.echo("`down` removes it; `up` replaces a stale one")
    if now.state is not ClusterHealth.RUNNING:
        raise click.exceptions.Exit(1)


@cluster.command(epilog=examples('eval "$(sexplsched cluster env --dir /tmp/cluster)"'))
@_directory
def env(directory: Path) -> None:
    """Print shell commands that point Slurm and explsched at a cluster. For `eval`."""
    for key, value in Cluster.load(directory).env().items():
        click.echo(f"export {key}={shlex.quote(value)}")


def _as_json(found: Cluster) -> str:
    now = found.status()
    data = {
        "directory": str(found.layout.root),
        "state": now.state,
        "cluster_name": found.layout.cluster_name,
        "nodes": list(found.spec.node_names),
        "gpus_per_node": found.spec.gpus_per_node,
        "accounting": found.spec.accounting,
        "environment": found.env(),
        "alive": [{"name": daemon.name, "pid": daemon.pid} for daemon in now.alive],
        "dead": [{"name": daemon.name, "pid": daemon.pid} for daemon in now.dead],
    }
    return json.dumps(data, indent=1)
