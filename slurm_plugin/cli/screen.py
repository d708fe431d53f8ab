"""The screen of `sexplsched top`: queue, sweeps and GPUs in a terminal, with htop's keys. It only shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Sparkline, Static, TabbedContent, TabPane
from textual.worker import Worker

from explsched.errors import ExplschedError
from explsched.tables import printable
from slurm_plugin.state.published import Curve, JobRow, NodeRow, State, part, states

_MOST_ROWS = 1000
"""Rows of a table; a filter finds those beyond."""
_METER_WIDTH = 24
_QUEUE = ("JOBID", "USER", "NAME", "STATE", "GPUS", "SWEEP", "STEP", "VALUE", "PLANNED", "REASON")
_SWEEPS = ("JOBID", "USER", "SWEEP", "STATE", "METRIC", "BEST", "STEP", "PARAMS")
_NODES = ("NODE", "STATE", "GPUS", "HELD", "JOBS")
_SORTS: dict[str, Callable[[JobRow], tuple[object, ...]]] = {
    "policy": lambda _row: (),
    "jobid": lambda row: (row.jobid,),
    "user": lambda row: (row.user, row.jobid),
    "gpus": lambda row: (-row.gpus, row.jobid),
    "planned": lambda row: (not row.planned, row.planned),
}
_HELP = """\
F1 h    this help                 1 2 3     queue, sweeps, GPUs
F3 /    search: go to a row       F4 \\      filter: only rows with a text
F6 >    next order of the queue   u         only this user's jobs, or all
Enter   explain the job           Up Down PgUp PgDn Home End
F5 r    look now                  F10 q     quit

Nothing here changes a job. Press any key.
"""


def meter(held: int, whole: int, width: int = _METER_WIDTH) -> str:
    """As in htop: `[|||||     3/8]`."""
    told = f"{held}/{whole}"
    bars = round(width * held / whole) if whole else 0
    return f"[{('|' * min(bars, width)).ljust(width)} {told}]"


def queue_rows(state: State, text: str, user: str, sort: str) -> list[tuple[str, ...]]:
    """The queue: rows that have a text in id, name, user, sweep or state, in one of the orders of `_SORTS`."""
    wanted = text.lower()
    found = [
        row
        for row in state.jobs
        if user in ("", row.user)
        and any(wanted in value.lower() for value in (str(row.jobid), row.name, row.user, row.sweep, row.state))
    ]
    found.sort(key=_SORTS[sort])
    return [
        (
            *(str(row.jobid), row.user, row.name[:40], row.state, str(row.gpus), row.sweep[:24], row.step),
            "" if row.value is None else f"{row.metric}={row.value:.4g}",
            row.planned,
            row.reason,
        )
        for row in found
    ]


def training_rows(curves: Iterable[Curve], text: str, user: str) -> list[tuple[Curve, tuple[str, ...]]]:
    """Trainings that have reported, sweep by sweep, the best first."""
    wanted = text.lower()
    found = [
        one
        for one in curves
        if one.sweep and user in ("", one.user) and wanted in f"{one.jobid} {one.sweep} {one.user}".lower()
    ]
    found.sort(key=lambda one: (one.sweep, one.user, *one.rank))
    return [(one, _training(one)) for one in found]


def _training(one: Curve) -> tuple[str, ...]:
    step = f"{one.points[-1][0]}" + (f"/{one.total_steps}" if one.total_steps else "")
    params = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in one.params
    )
    return str(one.jobid), one.user, one.sweep[:24], one.state, one.metric[:24], f"{one.best:.5g}", step, params[:120]


def _shape(one: Curve) -> list[float]:
    """Its values, the largest as 1 or -1: sums and differences of what a training may report need not be numbers."""
    largest = max(abs(value) for _, value in one.points) or 1.0
    return [value / largest for _, value in one.points]


def node_rows(nodes: Iterable[NodeRow], text: str) -> list[tuple[str, ...]]:
    """Nodes with who holds each GPU: `.` nobody, `#` one job, a number so many that share it."""
    rows: list[tuple[str, ...]] = []
    for node in nodes:
        if text.lower() in f"{node.name} {node.state}".lower():
            gpus = "".join(
                "." if not holders else "#" if len(holders) == 1 else str(len(holders)) for holders in node.devices
            )
            held = sum(bool(holders) for holders in node.devices)
            jobs = " ".join(str(job) for job, _ in node.jobs)
            rows.append((node.name, node.state, gpus, f"{held}/{node.gpus}", jobs))
    return rows


class Words(ModalScreen[None]):
    """Text over the screen, until a key is pressed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """As Textual asks for it."""
        with VerticalScroll(id="words"):
            yield Static(Text(self._text))

    def on_key(self) -> None:
        """Any key closes it."""
        self.dismiss()


class Screen(App[None]):
    """The application. `look` gives the state; it runs in a thread, so that a slow Slurm does not stop the keys."""

    TITLE = "sexplsched top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #meters { height: 2; padding: 0 1; }
    #line { height: 1; border: none; padding: 0 1; display: none; }
    #line.shown { display: block; }
    #curve { height: 6; margin: 1 1 0 1; }
    #about { height: 1; padding: 0 1; color: $text-muted; }
    DataTable { height: 1fr; }
    Words { align: center middle; }
    #words { width: 90%; max-width: 110; height: auto; max-height: 80%; padding: 1 2;
             border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,h,question_mark", "help", "Help", key_display="F1"),
        Binding("f3,slash", "line('search')", "Search", key_display="F3"),
        Binding("f4,backslash", "line('filter')", "Filter", key_display="F4"),
        Binding("f5,r", "look", "Look", key_display="F5"),
        Binding("f6,greater_than_sign", "sort", "Order", key_display="F6"),
        Binding("u", "user", "User"),
        Binding("1", "tab('queue')", "Queue"),
        Binding("2", "tab('sweeps')", "Sweeps"),
        Binding("3", "tab('gpus')", "GPUs"),
        Binding("f10,q", "quit", "Quit", key_display="F10"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # as in htop; Textual only tells of its own key
        Binding("escape", "leave_line", show=False),
    ]

    def __init__(self, look: Callable[[], State], every_s: float, user: str = "") -> None:
        super().__init__()
        self._look_up = look
        self._every_s = every_s
        self._user = user
        self._chosen_user = user
        self._filter = ""
        self._sort = "policy"
        self._purpose = "search"
        self._state: State | None = None
        self._curves: tuple[Curve, ...] = ()
        self._fault = ""
        self._looking: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """As Textual asks for it."""
        yield Static(id="meters")
        with TabbedContent(id="tabs", initial="queue"):
            with TabPane("Queue", id="queue"):
                yield _table("queue-table", _QUEUE)
            with TabPane("Sweeps", id="sweeps"):
                yield _table("sweeps-table", _SWEEPS)
                yield Sparkline([], id="curve", summary_function=lambda values: sum(values) / len(values))
                yield Static(id="about")
            with TabPane("GPUs", id="gpus"):
                yield _table("gpus-table", _NODES)
        yield Input(id="line")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.action_look()
        self.set_interval(self._every_s, self.action_look)
        self.query_one("#queue-table", DataTable).focus()

    def action_look(self) -> None:
        """Ask for the state again, unless an answer is still awaited."""
        if self._looking is None or self._looking.is_finished:  # a thread cannot be cancelled
            self._looking = self.run_worker(self._look, thread=True, group="look", exit_on_error=False)

    def _look(self) -> None:
        try:
            state = self._look_up()
        except ExplschedError as error:
            self.call_from_thread(self._show, self._state, str(error))
        else:
            self.call_from_thread(self._show, state, "")

    def _show(self, state: State | None, fault: str) -> None:
        self._state, self._fault = state, fault
        self._curves = part(state.curves, tuple[Curve, ...]) if state else ()
        self.refresh_tables()

    def refresh_tables(self) -> None:
        """Fill tables and meters from the state that is known; the cursor stays on its job."""
        state = self._state
        if state is None:
            self.query_one("#meters", Static).update(Text(printable(self._fault) or "looking ..."))
            return
        queue = queue_rows(state, self._filter, self._user, self._sort)
        _fill(self.query_one("#queue-table", DataTable), queue)
        self._trainings = training_rows(self._curves, self._filter, self._user)
        _fill(self.query_one("#sweeps-table", DataTable), [row for _, row in self._trainings])
        nodes = node_rows(state.nodes, "" if self.query_one("#tabs", TabbedContent).active != "gpus" else self._filter)
        _fill(self.query_one("#gpus-table", DataTable), nodes)
        self.query_one("#meters", Static).update(Text(self._meters(state, len(queue))))
        self._show_curve()

    def _meters(self, state: State, rows: int) -> str:
        held = sum(bool(holders) for node in state.nodes for holders in node.devices)
        gpus = sum(node.gpus for node in state.nodes)
        found = states(state.jobs)
        jobs = f"running {found['running']}  waiting {found['waiting'] + found['paused']}"
        who = f"user {self._user}" if self._user else "all users"
        shown = f"the first {_MOST_ROWS} of {rows} rows" if rows > _MOST_ROWS else f"{rows} rows"
        about = [who, f"order {self._sort}", f"filter {self._filter!r}" if self._filter else "", shown]
        age = f"{state.age_s(time.time()):.0f} s old" + (", STALE" if state.is_stale(time.time()) else "")
        first = f"GPUs {meter(held, gpus)}  {jobs}  policy {state.policy}  {age}"
        return printable(first) + "\n" + printable(self._fault or ", ".join(filter(None, about)))

    def _show_curve(self) -> None:
        table = self.query_one("#sweeps-table", DataTable)
        at = table.cursor_row
        one = self._trainings[at][0] if 0 <= at < len(self._trainings) else None
        self.query_one("#curve", Sparkline).data = _shape(one) if one else []
        about = f"job {one.jobid}: {one.metric} over {one.points[-1][0]} steps, best {one.best:.6g}" if one else ""
        self.query_one("#about", Static).update(Text(printable(about)))

    def on_data_table_row_highlighted(self, moved: DataTable.RowHighlighted) -> None:
        """The curve is that of the training under the cursor."""
        if moved.data_table.id == "sweeps-table" and self._state is not None:
            self._show_curve()

    def on_data_table_row_selected(self, chosen: DataTable.RowSelected) -> None:
        """Enter explains."""
        if self._state is not None and chosen.data_table.id != "gpus-table":
            told = self._state.explanation(int(str(chosen.data_table.get_row(chosen.row_key)[0])))
            words = "\n".join(map(printable, told.sentences)) if told else "It has ended, and Slurm has forgotten it."
            self.push_screen(Words(words))

    def action_help(self) -> None:
        """F1."""
        self.push_screen(Words(_HELP))

    def action_tab(self, name: str) -> None:
        """1, 2, 3."""
        self.query_one("#tabs", TabbedContent).active = name
        self.query_one(f"#{name}-table", DataTable).focus()

    def action_sort(self) -> None:
        """F6: the next order."""
        orders = list(_SORTS)
        self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        self.refresh_tables()

    def action_user(self) -> None:
        """Of the user under the cursor only, or of all again."""
        table = self.query_one("#queue-table", DataTable)
        under = str(table.get_row_at(table.cursor_row)[1]) if table.row_count else ""
        self._user = "" if self._user else self._chosen_user or under
        self.refresh_tables()

    def action_line(self, purpose: str) -> None:
        """F3 and F4: a line to type in."""
        line = self.query_one("#line", Input)
        self._purpose = purpose
        line.value, line.placeholder = self._filter if purpose == "filter" else "", f"{purpose}: a text, then Enter"
        line.add_class("shown")
        line.focus()

    def action_leave_line(self) -> None:
        """Escape: back to the table; a filter ends."""
        if self._purpose == "filter":
            self._filter = ""
        self._to_table()
        self.refresh_tables()

    def on_input_changed(self, typed: Input.Changed) -> None:
        """As in htop, filter and search follow what is typed."""
        if self._purpose == "filter":
            self._filter = typed.value
            self.refresh_tables()
        elif typed.value:
            self._find(typed.value.lower())

    def on_input_submitted(self, _typed: Input.Submitted) -> None:
        """Enter: back to the table."""
        self._to_table()

    def _find(self, text: str) -> None:
        table = self._active_table()
        for at in range(table.row_count):
            if any(text in str(cell).lower() for cell in table.get_row_at(at)):
                table.move_cursor(row=at)
                return

    def _active_table(self) -> DataTable[Text]:
        return self.query_one(f"#{self.query_one('#tabs', TabbedContent).active}-table", DataTable)

    def _to_table(self) -> None:
        self.query_one("#line", Input).remove_class("shown")
        self._active_table().focus()


def _table(name: str, titles: Sequence[str]) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
    table.add_columns(*titles)
    return table


def _fill(table: DataTable[Text], rows: Sequence[Sequence[str]]) -> None:
    """Replace the rows. Cells are users' free text: never markup, no control characters."""
    at, key = table.cursor_row, str(table.get_row_at(table.cursor_row)[0]) if table.row_count else ""
    shown = rows[:_MOST_ROWS]
    table.clear()
    table.add_rows([[Text(printable(cell)) for cell in row] for row in shown])
    same = next((number for number, row in enumerate(shown) if row[0] == key), at)
    if shown:
        table.move_cursor(row=min(same, len(shown) - 1), animate=False)
