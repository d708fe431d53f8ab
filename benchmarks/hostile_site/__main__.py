"""`python -m benchmarks.hostile_site`: honest and lying users, with Slurm alone and under each policy."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from benchmarks.hostile_site import arm as arms
from benchmarks.hostile_site import figures
from sched_policy import catalog


@click.command()
@click.option("--minutes", default=2.0, show_default=True, help="Of load in each arm; six stand for an hour.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("srsf", "explsched"),
    show_default=True,
    type=click.Choice(catalog.POLICIES.names()),
    help="May be given more than once.",
)
@click.option("--seed", default=1, show_default=True, help="Of the jobs.")
@click.option("--chaos", "chaos_seed", type=int, help="Kill, stop and fill at random moments of this seed.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this file.")
@click.option("--keep", type=click.Path(path_type=Path), help="Also write what happened into this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    minutes: float,
    policies: tuple[str, ...],
    seed: int,
    chaos_seed: int | None,
    out: Path | None,
    keep: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Run the same load with Slurm alone and with the daemon under each policy, and compare."""
    console = Console(stderr=True, quiet=as_json)
    found: dict[str | None, figures.Figures] = {}
    for policy in (None, *policies):
        with (
            tempfile.TemporaryDirectory(prefix="expl") as scratch,  # short: a munge socket's path is bounded
            console.status(policy or "Slurm alone") as status,
        ):
            Path(scratch).chmod(0o755)
            ran = arms.run(Path(scratch), policy, minutes, seed, chaos_seed, status.update)
            found[policy] = figures.of(ran)
            if keep:
                _keep(keep / (policy or "slurm-alone"), ran)
    words = [f"--minutes {minutes:g}", *(f"--policy {policy}" for policy in policies), f"--seed {seed}"]
    words += [] if chaos_seed is None else [f"--chaos {chaos_seed}"]
    result = {
        "command": " ".join(("python -m benchmarks.hostile_site", *words)),
        "setting": {"minutes": minutes, "seed": seed, "chaos": chaos_seed},
        "bars": {policy: asdict(figures.bars(found[policy])) for policy in policies},
        "arms": {policy or "Slurm alone": asdict(one) for policy, one in found.items()},
    }
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result, indent=None if as_json else 1))


def _keep(directory: Path, ran: arms.Arm) -> None:
    """What an arm was judged by, as Slurm and the daemon told it."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"sacct": ran.accounting, "jobs": ran.records, "sexplschedd.log": ran.daemon_log}
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
