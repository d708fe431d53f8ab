"""The gateway's process in its Slurm job: `python -m inference_gateway.supervisor`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from explsched import log
from explsched.errors import ExplschedError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.supervisor.loop import run

_LOG = logging.getLogger("explsched.gateway")


def _accepted(services_path: Path, kept: Path | None, slot: int) -> Accepted:
    """The files; what the gateway's job before this one had accepted, kept in a directory, if they are wrong now."""
    try:
        return accepted.read(services_path, slot)
    except ConfigError as error:
        last = None if kept is None else accepted.kept(kept, services_path, slot)
        if last is None:
            raise
        log.event(_LOG, logging.ERROR, "services file not taken, what was in force stays", why=str(error))
        return last


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", type=click.Path(path_type=Path))
@click.option("--slot", type=click.IntRange(1, 2), default=1)
@click.option("--sbatch", multiple=True)
def main(services_path: Path, kept: Path | None, slot: int, sbatch: tuple[str, ...]) -> None:
    """Run a gateway in its Slurm job."""
    log.set_up("info", None)
    try:
        run(_accepted(services_path, kept, slot), sbatch)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
