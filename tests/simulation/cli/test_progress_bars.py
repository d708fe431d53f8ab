"""Progress bars: for people who wait at a terminal, and for nobody else."""

import sys

import pytest

from simulation.cli import parallel as bars


@pytest.mark.parametrize(("terminal", "patience_s", "shown"), [(True, 0.0, 1), (True, 600.0, 0), (False, 0.0, 0)])
def test_bars_are_for_people_who_wait(
    terminal: bool,  # noqa: FBT001
    patience_s: float,
    shown: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(bars, "PATIENCE_S", patience_s)
    monkeypatch.setenv("TERM", "xterm")
    with bars.bars(["srsf", "fifo"]) as report:
        report(0, 1, 4)
        report(1, 4, 4)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [label in printed.err for label in ("srsf", "fifo", "25%", "100%")] == [bool(shown)] * 4
