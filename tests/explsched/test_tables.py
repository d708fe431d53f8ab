"""Tables fit the terminal without cutting what has room, and are whole when piped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from explsched.tables import Column, csv_text, lines

JOBS = (Column("JOBID"), Column("NAME"), Column("GPUS", ">"), Column("REASON"))
REASON = "waits for 2 whole nodes; the first is free at 12:30, the second at 13:00"
ROWS = [(7, "a-training-with-a-long-name", 16, REASON), (12, "b", 1, None)]


def test_nothing_is_cut_or_wrapped_when_piped() -> None:
    assert lines(JOBS, ROWS, None) == [
        "JOBID  NAME                         GPUS  REASON",
        f"7      a-training-with-a-long-name    16  {REASON}",
        "12     b                               1  -",
    ]


def test_a_reason_is_whole_where_there_is_room() -> None:
    assert lines(JOBS, ROWS, 120) == lines(JOBS, ROWS, None)


def test_a_reason_is_wrapped_at_words_where_there_is_not() -> None:
    assert lines(JOBS, ROWS[:1], 80) == [
        "JOBID  NAME                         GPUS  REASON",
        "7      a-training-with-a-long-name    16  waits for 2 whole nodes; the first is",
        "                                          free at 12:30, the second at 13:00",
    ]


def test_a_narrow_terminal_cuts_names_before_it_cuts_numbers() -> None:
    shown = lines(JOBS, ROWS[:1], 50)
    assert shown[1].startswith("7      a-training…    16  waits for")
    assert all(len(line) <= 50 for line in shown)


def test_a_width_that_was_asked_for_is_exact() -> None:
    columns = (Column("JOBID", width=4), Column("NAME", width=6), Column("REASON", width=9))
    assert lines(columns, [(123456, "abc", REASON)], 20) == ["JOBI  NAME    REASON", "1234  abc     waits for"]


def test_the_last_column_stands_below_where_there_is_no_room_beside() -> None:
    columns = (*(Column(f"N{n}", ">") for n in range(5)), Column("REASON"))
    shown = lines(columns, [(*[10**8] * 5, "it waits for GPUs that others hold until tomorrow, or longer")], 60)
    assert shown[1:] == [
        "    REASON",
        "100000000  100000000  100000000  100000000  100000000",
        "    it waits for GPUs that others hold until tomorrow, or",
        "    longer",
    ]


def test_what_stands_above_the_last_column_is_cut_only_where_the_line_is_full() -> None:
    columns = (Column("PARTITION"), *(Column(f"N{n}", ">") for n in range(5)), Column("PLANNED"), Column("REASON"))
    planned = "2026-11-24T03:45:10"
    shown = lines(columns, [("main", *[10**5] * 5, planned, "it waits for GPUs that others hold")], 80)
    assert shown[2].split() == ["main", *["100000"] * 5, planned]
    assert shown[0].startswith("PARTITION ")


def test_columns_stand_below_rather_than_lose_their_ends() -> None:
    columns = (
        Column("JOBID"),
        Column("STATE"),
        Column("GPUS", ">"),
        Column("PARAMS"),
        Column("PLANNED"),
        Column("WHY"),
    )
    planned, why = "2026-11-24T03:45:10", "explored: not far enough to be compared"
    rows = [(7, "PENDING", 1, "lr=0.1,width=16", planned, why), (8, "RUNNING", 1, "lr=0.01,width=64", "", "")]
    assert lines(columns, rows, 50) == [
        "JOBID  STATE    GPUS  PARAMS",
        "    PLANNED  WHY",
        "7      PENDING     1  lr=0.1,width=16",
        f"    {planned}  explored: not far enough",
        "    to be compared",
        "8      RUNNING     1  lr=0.01,width=64",
    ]


def test_long_text_is_cut_before_a_time_is() -> None:
    columns = (Column("TIME"), Column("BEFORE"), Column("AFTER"), Column("RULE"), Column("REASON"))
    time, comment = "2026-11-24T03:45:10", "explsched-preemption:since=1795791723&n=0&lost=0"
    shown = lines(columns, [(time, comment, comment, "annotation", "")], 60)
    assert shown[1].split() == [time, "explsch…", "explsche…", "annotation"]
    assert all(len(line) <= 60 for line in shown)


def test_a_long_list_of_jobs_is_broken_between_jobs() -> None:
    columns = (Column("NODE"), Column("STATE"), Column("JOBS"))
    jobs = [str(12345670 + number) for number in range(12)]
    shown = lines(columns, [("gpu-node-1", "MIXED", ",".join(jobs))], 60)
    assert len(shown) > 2
    assert all(len(line) <= 60 for line in shown)
    assert " ".join(shown[1:]).replace(",", " ").split()[2:] == jobs
    assert lines(columns, [("n1", "MIXED", ",".join(jobs))], None)[1].split()[2] == ",".join(jobs)


def test_no_heading() -> None:
    assert lines((Column("A"), Column("B")), [("x", 2.0)], None, heading=False) == ["x  2"]
    assert lines((Column("A"),), [], None, heading=False) == []


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert lines((Column("NAME"),), [("evil\x1b[31m\n",)], None)[1] == "evil?[31m?"


def test_wide_characters_keep_the_columns_straight() -> None:
    first, second = lines((Column("NAME"), Column("B")), [("日本", "x"), ("ab", "y")], None)[1:]
    assert (first, second) == ("日本  x", "ab    y")
    cut = lines((Column("NAME", width=5), Column("B")), [("日本語", "x"), ("ab", "y")], None)[1:]
    assert cut == ["日本   x", "ab     y"]


def test_numbers_stand_below_whole_where_there_is_no_room_for_all_of_them() -> None:
    columns = (Column("USER"), *(Column(f"N{n}", ">") for n in range(6)))
    shown = lines(columns, [("ada", *[1234567.5] * 6)], 50)
    assert all(len(line) <= 50 for line in shown)
    assert " ".join(shown[2:]).split() == ["ada", *["1.235e+06"] * 6]


@given(
    st.lists(
        st.tuples(st.text("ab日 c", max_size=30), st.integers(0, 10**6), st.text("ab語 cd ", max_size=90)), max_size=6
    ),
    st.integers(50, 150),
)
def test_every_table_with_room_for_its_least_fits(rows: list[tuple[str, int, str]], width: int) -> None:
    columns = (Column("NAME"), Column("N", ">"), Column("REASON"))
    assert all(cell_len(line) <= width for line in lines(columns, rows, width))
    whole = " ".join(" ".join(lines(columns, rows, width)).split())
    for _name, _number, reason in rows:
        if width >= 60:
            assert all(word in whole for word in reason.split())


def test_a_text_in_csv_is_no_formula_and_a_number_stays_one() -> None:
    rows = [("user", "best"), ("=1+2", -0.5), ("@sum", "-0.5"), ("-", None), ("-x", "\tb")]
    assert csv_text(rows) == "user,best\n'=1+2,-0.5\n'@sum,-0.5\n-,\n'-x,'\tb\n"
