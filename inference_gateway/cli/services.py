"""`sexplsched gateway services`: what a services file offers."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from explsched.cli.options import json_option
from inference_gateway.cli.options import opened, services_option
from inference_gateway.services import described


@click.command()
@services_option
@json_option
@click.option("--keys", "show", flag_value="keys", help="List every key of a services file with meaning and default.")
def services(*, services_path: Path, as_json: bool, show: str | None) -> None:
    """Check a services file, and list its services with the ways that lead to them."""
    if show:
        for key, meaning, default in described():
            click.echo(f"{key:<52} {meaning} (default: {default})")
        return
    section, places = opened(services_path)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(section, enc_hook=str), indent=1))
        return
    click.echo(f"gateway {section.name}, address file {places.address}")
    click.echo(f"{'SERVICE':<20} {'MIN':>4} {'MAX':>4} {'RULE':<8} {'PATH':<28} MODELS")
    for name, service in section.services.items():
        scale = service.scale
        models = ",".join((name, *service.models))
        click.echo(f"{name:<20} {scale.min:>4} {scale.max:>4} {scale.rule:<8} {'/services/' + name:<28} {models}")
