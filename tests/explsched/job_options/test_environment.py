"""Job options in the environment."""

import argparse

import pytest

from explsched.job_options.command_line import Found, add, exported, read, read_for_submission
from explsched.job_options.table import CHECKPOINT, EARLY_STOP, ELASTIC, LIMIT, METRIC, SCHEDULED, SHARE, SWEEP


def test_every_option_has_a_variable() -> None:
    found = read({"EXPLSCHED_SWEEP": "s", "EXPLSCHED_EARLY_STOP": "1", "EXPLSCHED_CHECKPOINT": "sigusr2"}, SCHEDULED)
    assert found == Found({"sweep": "s", "early-stop": "1", "checkpoint": "USR2"}, ())


def test_an_empty_variable_says_nothing() -> None:
    assert read({"EXPLSCHED_SWEEP": "", "EXPLSCHED_LIMIT": ""}, SCHEDULED) == Found({}, ())


def test_a_variable_with_nonsense_is_named_and_ignored() -> None:
    found = read({"EXPLSCHED_LIMIT": "2000", "EXPLSCHED_SWEEP": "s"}, SCHEDULED)
    assert found == Found({"sweep": "s"}, ("EXPLSCHED_LIMIT is ignored: found '2000', accepted: 0.001 to 1",))


def test_a_command_line_takes_no_percentages(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever types 30 means percent."""
    parser = argparse.ArgumentParser()
    add(parser, LIMIT)
    assert parser.parse_args(["--limit", "0.30"]).limit == "0.3"
    with pytest.raises(SystemExit):
        parser.parse_args(["--limit", "30"])
    assert "found '30', accepted: 0.001 to 1" in capsys.readouterr().err


def test_a_job_does_not_consent_for_those_that_it_submits() -> None:
    variables = {SWEEP.variable: "s", CHECKPOINT.variable: "USR1", EARLY_STOP.variable: "1", ELASTIC.variable: "1-8"}
    assert set(read_for_submission(variables, SCHEDULED).values) == {"sweep", "checkpoint", "early-stop", "elastic"}
    assert set(read_for_submission({**variables, "SLURM_JOB_ID": "7"}, SCHEDULED).values) == {"sweep"}
    inside = read({**variables, "SLURM_JOB_ID": "7"}, SCHEDULED).values
    assert set(inside) == {"sweep", "checkpoint", "early-stop", "elastic"}


def test_what_is_exported_is_read() -> None:
    values = {"share": "high", "metric": "acc", "early-stop": "1"}
    variables = exported(values, SCHEDULED)
    assert variables == {METRIC.variable: "acc", EARLY_STOP.variable: "1", SHARE.variable: "high"}
    assert read(variables, SCHEDULED) == Found(values, ())
