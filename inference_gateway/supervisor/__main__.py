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
from inference_gateway.errors import GatewayError
from inference_gateway.supervisor.loop import Supervisor

_LOG = logging.getLogger("explsched.gateway")


def run(services_path: Path, sbatch: tuple[str, ...], kept: Path | None = None) -> None:
    """Run a gateway here until it is told to stop.

    `kept`: a directory with what the gateway's job before this one had accepted; it holds if the file is wrong now.
    Raises `ConfigError`, `GatewayError`.
    """
    now = _accepted(services_path, kept)
    try:
        supervisor = Supervisor(now, services_path.resolve(), sbatch)
    except OSError as error:
        raise GatewayError(f"{error.filename or now.section.state_directory}: {error.strerror}") from error
    supervisor.run()


def _accepted(services_path: Path, kept: Path | None) -> Accepted:
    try:
        return accepted.read(services_path)
    except ConfigError as error:
        last = None if kept is None else accepted.kept(kept, services_path)
        if last is None:
            raise
        log.event(_LOG, logging.ERROR, "services file not taken, what was in force stays", why=str(error))
        return last


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", type=click.Path(path_type=Path))
@click.option("--sbatch", multiple=True)
def main(services_path: Path, kept: Path | None, sbatch: tuple[str, ...]) -> None:
    """Run a gateway in its Slurm job."""
    log.set_up("info", None)
    try:
        run(services_path, sbatch, kept)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
