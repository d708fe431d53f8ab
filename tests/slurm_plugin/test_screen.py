"""`sexplsched top`, driven as a person would: with keys."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from explsched.cli import root
from explsched.errors import ExplschedError
from slurm_plugin.state.published import Curve, State, encoded
from tests.slurm_kit import record
from tests.slurm_plugin.state import HOSTILE, JOBS, published

pytest.importorskip("textual", reason="Textual is not installed (explsched[top])")
from textual.widgets import DataTable, Sparkline, Static

from slurm_plugin.cli.screen import Screen, meter, node_rows


def with_curves(state: State) -> State:
    told = [
        Curve(
            *(number, "bob", HOSTILE, "digits", "[red]loss[/red]", "RUNNING", "min", 1.0 / number, 1, 60.0, 100),
            (("lr", 0.1), ("[b]x[/b]", "\x1b[31m")),
            tuple((step, 1 / (step + number)) for step in range(1, 9)),
        )
        for number in (42, 77)
    ]
    return replace(state, curves=encoded(told))


def cells(app: Screen, table: str) -> list[list[str]]:
    found = app.query_one(table, DataTable)
    return [[str(cell) for cell in found.get_row_at(at)] for at in range(found.row_count)]


def drive(look: Callable[[], State], act: Callable[[Screen, Any], Awaitable[None]], width: int = 140) -> None:
    """Start the screen, wait for its first look, and act."""

    async def run() -> None:
        app = Screen(look, 3600)
        async with app.run_test(size=(width, 30)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())


@pytest.fixture
def state(tmp_path: Path) -> State:
    return with_curves(published(tmp_path, now_s=time.time()))


def test_queue_sweeps_and_gpus_are_shown_as_text(state: State) -> None:
    async def act(app: Screen, pilot: Any) -> None:
        queue = cells(app, "#queue-table")
        assert {row[0] for row in queue} == {"41", "42", "43"}
        assert not any(character in cell for row in queue for cell in row for character in "\x1b\u202e")
        meters = str(app.query_one("#meters", Static).render())
        assert meter(2, 8) in meters, "two GPUs, shared by two jobs"
        assert "running 2  waiting 1" in meters
        await pilot.press("2")
        sweeps = cells(app, "#sweeps-table")
        assert [row[0] for row in sweeps] == ["77", "42"], "the best first"
        assert sweeps[0][4] == "[red]loss[/red]"
        assert len(app.query_one("#curve", Sparkline).data or ()) == 8
        await pilot.press("3")
        assert cells(app, "#gpus-table")[0][2] == "22.."

    drive(lambda: state, act)


def test_a_filter_follows_what_is_typed_and_escape_ends_it(state: State) -> None:
    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("f4", *"digits")
        assert [row[0] for row in cells(app, "#queue-table")] == ["42"]
        await pilot.press("enter")
        assert app.focused is app.query_one("#queue-table")
        await pilot.press("backslash", "escape")
        assert len(cells(app, "#queue-table")) == 3

    drive(lambda: state, act)


def test_search_goes_to_a_row_and_enter_explains_it(state: State) -> None:
    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("slash", *"43", "enter", "enter")
        await pilot.pause()
        assert "Slurm says: Resources" in str(app.screen.query_one("#words Static", Static).render())
        await pilot.press("x")
        await pilot.press("f1")
        await pilot.pause()
        assert "Nothing here changes a job" in str(app.screen.query_one("#words Static", Static).render())

    drive(lambda: state, act)


def test_ctrl_c_ends_it_as_htop(state: State) -> None:
    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("f4", *"digits", "ctrl+c")
        assert not app.is_running

    drive(lambda: state, act)


def test_orders_and_users(state: State) -> None:
    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("f6")
        assert [row[0] for row in cells(app, "#queue-table")] == ["41", "42", "43"]
        await pilot.press("home", "u")
        assert {row[1] for row in cells(app, "#queue-table")} == {"ada"}
        await pilot.press("u")
        assert len(cells(app, "#queue-table")) == 3

    drive(lambda: state, act)


def test_the_cursor_stays_on_its_job_when_others_come(tmp_path: Path, state: State) -> None:
    shown = [state]

    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("slash", *"43", "enter")
        shown[0] = published(tmp_path, jobs=(*JOBS, record(1, user="ada", reason="Resources")), now_s=time.time())
        await pilot.press("f5")
        await app.workers.wait_for_complete()
        await pilot.pause()
        table = app.query_one("#queue-table", DataTable)
        assert table.row_count == 4
        assert str(table.get_row_at(table.cursor_row)[0]) == "43"

    drive(lambda: shown[0], act)


def test_ten_thousand_jobs_are_cut_and_found_by_a_filter(state: State) -> None:
    rows = tuple(replace(state.jobs[0], jobid=number, name=f"train-{number}") for number in range(10_000))

    async def act(app: Screen, pilot: Any) -> None:
        assert "the first 1000 of 10000 rows" in str(app.query_one("#meters", Static).render())
        await pilot.press("f4", *"train-9999")
        assert [row[0] for row in cells(app, "#queue-table")] == ["9999"]

    drive(lambda: replace(state, jobs=rows), act)


def test_a_fault_is_told_and_what_was_known_stays(state: State) -> None:
    answers = iter([state])

    def look() -> State:
        try:
            return next(answers)
        except StopIteration:
            raise ExplschedError("squeue: no answer \x1b[31m") from None

    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "squeue: no answer ?[31m" in str(app.query_one("#meters", Static).render())
        assert len(cells(app, "#queue-table")) == 3

    drive(look, act, width=60)


@pytest.mark.parametrize("values", [(1.7e308, -1.7e308, 1.7e308), (0.0, 0.0), (5e-324, 0.0)])
def test_a_curve_of_any_values_is_drawn(state: State, values: tuple[float, ...]) -> None:
    points = tuple(enumerate(values, start=1))
    curve = Curve(42, "bob", "t", "digits", "loss", "RUNNING", "min", min(values), 1, 60.0, 100, (), points)

    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("2")
        await pilot.pause()
        assert app.is_running
        assert len(app.query_one("#curve", Sparkline).data or ()) == len(values)

    drive(lambda: replace(state, curves=encoded([curve])), act)


def test_it_looks_again_only_when_there_is_an_answer(state: State) -> None:
    begun: list[int] = []
    answered = threading.Event()

    def look() -> State:
        begun.append(len(begun))
        if len(begun) > 1:
            answered.wait()
        return state

    async def act(app: Screen, pilot: Any) -> None:
        await pilot.press("r", "r", "r")
        answered.set()
        await app.workers.wait_for_complete()
        assert len(begun) == 2, "one for three keys, after the first"
        await pilot.press("r")
        await app.workers.wait_for_complete()
        assert len(begun) == 3

    drive(look, act)


def test_gpus_say_who_shares(state: State) -> None:
    assert node_rows(state.nodes, "n2") == [("n2", "IDLE+DRAIN", "....", "0/4", "")]
    assert meter(0, 0) == f"[{' ' * 24} 0/0]"


def test_without_a_terminal_it_names_the_command_that_needs_none() -> None:
    refused = CliRunner().invoke(root, ["top"])
    assert "needs a terminal; elsewhere: sexplsched status --iterate 5" in str(refused.exception)
