"""The commands of the package, as its entry points name them: none is named here, so none is forgotten."""

from __future__ import annotations

import argparse
from importlib import import_module, metadata
from types import ModuleType

import click

from explsched.errors import ExplschedError

DISTRIBUTION = "explsched"


class ManualError(ExplschedError):
    """A command cannot be described."""


def commands() -> dict[str, click.Command | argparse.ArgumentParser]:
    """The package's commands by name, from its entry points. Raises `ManualError` for one that tells no options."""
    scripts = metadata.distribution(DISTRIBUTION).entry_points.select(group="console_scripts")
    return {script.name: _described(script.name, import_module(script.module)) for script in scripts}


def _described(name: str, module: ModuleType) -> click.Command | argparse.ArgumentParser:
    for value in vars(module).values():
        if isinstance(value, click.Command):
            return value
    if not hasattr(module, "options_parser"):
        raise ManualError(f"{name}: {module.__name__} has neither a click command nor a function `options_parser`")
    parser: argparse.ArgumentParser = module.options_parser()
    return parser
