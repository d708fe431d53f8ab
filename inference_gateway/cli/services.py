"""`sexplsched gateway services`: what a services file offers."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from explsched.cli.options import json_option
from explsched.cli.tables import Column, lines, room
from inference_gateway.cli.options import opened, services_option
from inference_gateway.services import keys


@click.command()
@services_option
@json_option
@click.option("--keys", "show", flag_value="keys", help="List every key of a services file with meaning and default.")
def services(*, services_path: Path, as_json: bool, show: str | None) -> None:
    """Check a services file, and list its services with the ways that lead to them."""
    if show:
        rows = ((key.name, f"{key.meaning}; {key.accepted} (default: {key.default})") for key in keys())
        click.echo("\n".join(lines((Column("KEY"), Column("MEANING")), rows, room(), heading=False)))
        return
    section, places = opened(services_path)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(section, enc_hook=str), indent=1))
        return
    click.echo(f"gateway {section.name}, address file {places.address}")
    columns = (
        Column("SERVICE"),
        Column("MIN", ">"),
        Column("MAX", ">"),
        Column("RULE"),
        Column("PATH"),
        Column("MODELS"),
    )
    offered = (
        (name, one.scale.min, one.scale.max, one.scale.rule, f"/services/{name}", ", ".join((name, *one.models)))
        for name, one in section.services.items()
    )
    click.echo("\n".join(lines(columns, offered, room())))
