"""The table of Slurm versions for the README, from what `scripts/test-matrix` has left in build/matrix."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click

_HEAD = "| Debian | Slurm | passed | failed | skipped | on |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    """The tests on one Slurm. `skipped` counts by reason; `date` is that of the oldest result."""

    name: str
    version: str
    date: str
    passed: int
    failed: int
    skipped: Counter[str]

    def __str__(self) -> str:
        counts = f"{self.passed} | {self.failed} | {self.skipped.total()}"
        return f"| {self.name} | {self.version} | {counts} | {self.date} |"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default="build/matrix")
def main(directory: Path) -> None:
    """Print one row per Slurm: how many tests on real clusters passed, failed, were skipped; and why these were."""
    reports = sorted(directory.glob("*.xml"))
    if not reports:
        sys.exit(f"{directory}: no results; scripts/test-matrix makes them")
    rows = [_row(name, parts) for name, parts in itertools.groupby(reports, lambda path: path.name.split(".")[0])]
    rows.sort(key=lambda row: row.version)
    print(_HEAD, *rows, sep="\n")
    for reason, count in sum((row.skipped for row in rows), Counter[str]()).most_common():
        where = ", ".join(row.version for row in rows if row.skipped[reason])
        print(f"\nSkipped {count} times ({where}): {reason}", end="")
    print()


def _row(name: str, parts: Iterable[Path]) -> Row:
    """All parts of a release (RELEASE.xml, RELEASE.PART.xml) as one. A test counts once, with its latest result."""
    versions: set[str] = set()
    suites: list[tuple[str, ElementTree.Element]] = []
    for part in parts:
        versions.add(part.with_suffix(".version").read_text().split()[-1])
        root = ElementTree.parse(part).getroot()  # noqa: S314  our own tests wrote it
        suites += [(suite.get("timestamp", ""), suite) for suite in root.iter("testsuite")]
    if len(versions) != 1:
        sys.exit(f"{name}: its parts are of several Slurms: {', '.join(sorted(versions))}")
    latest: dict[tuple[str | None, str | None], ElementTree.Element] = {}
    for _, suite in sorted(suites, key=lambda dated: dated[0]):
        latest |= {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in latest.values())
    skipped = Counter(skip.get("message", "") for case in latest.values() for skip in case.iter("skipped"))
    passed = len(latest) - failed - skipped.total()
    return Row(name, versions.pop(), min(date for date, _ in suites)[:10], passed, failed, skipped)


if __name__ == "__main__":
    main()
