"""The table of Slurm versions for the README, from what `scripts/test-matrix` has left in build/matrix."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import click


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default="build/matrix")
def main(directory: Path) -> None:
    """Print one row per Debian release: its Slurm, and how many tests on real clusters passed, failed, were skipped."""
    reports = sorted(directory.glob("*.xml"))
    if not reports:
        sys.exit(f"{directory}: no results; scripts/test-matrix makes them")
    print("| Debian | Slurm | passed | failed | skipped |\n|---|---|---|---|---|")
    for report in reports:
        version = report.with_suffix(".version").read_text().split()[-1]
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))  # noqa: S314  our own tests wrote it
        tests, failures, errors, skipped = (
            sum(int(suite.get(count, 0)) for suite in suites) for count in ("tests", "failures", "errors", "skipped")
        )
        bad = failures + errors
        print(f"| {report.stem} | {version} | {tests - bad - skipped} | {bad} | {skipped} |")


if __name__ == "__main__":
    main()
