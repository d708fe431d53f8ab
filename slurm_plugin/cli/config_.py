"""`sexplsched config`: check and show the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import yaml
from pydantic import BaseModel

from slurm_plugin import config as configuration
from slurm_plugin.cli.session import config_option


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@config_option
def check(config_path: Path | None) -> None:
    """Check the configuration file; every fault is named with its key and what is accepted."""
    configuration.load(config_path)
    path = configuration.find(config_path)
    click.echo(f"{path}: ok" if path else "no configuration file: the defaults hold")


@config.command()
@config_option
def show(config_path: Path | None) -> None:
    """Show the configuration in force, defaults included."""
    click.echo(yaml.safe_dump(configuration.load(config_path).model_dump(mode="json"), sort_keys=False), nl=False)


@config.command()
def keys() -> None:
    """List every key with its meaning and default."""
    for line in _describe(configuration.Config, ""):
        click.echo(line)


def _describe(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _describe(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix + name:<34} {field.description} (default: {field.default})"
