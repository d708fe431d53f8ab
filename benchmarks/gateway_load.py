"""What the gateway costs, beside a bare HAProxy, an aiohttp proxy and direct access in the same run.

Each part is a module of `benchmarks.gateway` with figures of its own; `--part` chooses. Loopback only, bounded in time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.gateway import cpu, fair, live, many, order, sse, tokens, two

PARTS: dict[str, Callable[[Path, int, int], dict[str, float]]] = {
    "cpu": cpu.measure,
    "sse": sse.measure,
    "order": order.measure,
    "fair": fair.measure,
    "many": lambda directory, _rounds, _seconds: many.measure(directory, services=1000, replicas=10),
    "tokens": lambda directory, _rounds, _seconds: tokens.measure(directory, requests=10_000),
    "live": lambda directory, _rounds, _seconds: live.measure(directory),
    "two": lambda directory, _rounds, _seconds: two.measure(directory),
}


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Default: all.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 50), help="Repetitions.")
@click.option("--seconds", default=4, show_default=True, type=click.IntRange(1, 60), help="Length of each load.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(parts: tuple[str, ...], rounds: int, seconds: int, as_json: bool) -> None:  # noqa: FBT001  click
    """Measure the gateway under load."""
    figures: dict[str, float] = {}
    for part in parts or PARTS:
        # A short path: Unix sockets have at most 107 characters.
        with tempfile.TemporaryDirectory(prefix="igwb") as scratch:
            figures |= PARTS[part](Path(scratch) / part, rounds, seconds)
    if as_json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:<32} {value:.4f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
