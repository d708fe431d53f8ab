"""The picture of rules holds every run at its place."""

from pathlib import Path

import pytest

from simulation.requests.replay import Point, RequestReplay, draw
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace
from simulation.results.plots import PlotError

REPLAY = RequestReplay.of(
    RequestTrace(tuple(Request(i / 2, service_s=3.0) for i in range(60))), None, RequestSettings(concurrency=2)
)


def test_a_picture(tmp_path: Path) -> None:
    points = [Point(target, REPLAY.measured("dilu", {"utilization": target or 1.0})) for target in (None, 0.5, 1.0)]
    path = tmp_path / "rules.svg"
    draw({"one": {"dilu": points}, "two": {"dilu": points[:1]}}, path)
    text = path.read_text()
    assert text.startswith("<?xml")
    assert "requests over the SLO" in text or len(text) > 10_000


def test_an_unknown_kind_of_picture(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match="unknown kind of picture"):
        draw({}, tmp_path / "rules.gif")
