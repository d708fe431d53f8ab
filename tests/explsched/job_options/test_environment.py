"""Job options in the environment."""

import argparse

import pytest

from explsched.job_options.command_line import Found, add, exported, read, read_for_submission
from explsched.job_options.table import CHECKPOINT, EARLY_STOP, ELASTIC, LIMIT, METRIC, SCHEDULED, SHARE, SWEEP, Option


def test_every_option_has_a_variable() -> None:
    found = read({"EXPLSCHED_SWEEP": "s", "EXPLSCHED_EARLY_STOP": "1", "EXPLSCHED_CHECKPOINT": "sigusr2"}, SCHEDULED)
    assert found == Found({"sweep": "s", "early-stop": "1", "checkpoint": "USR2"}, ())


def test_an_empty_variable_says_nothing() -> None:
    assert read({"EXPLSCHED_SWEEP": "", "EXPLSCHED_LIMIT": ""}, SCHEDULED) == Found({}, ())


def test_a_variable_with_nonsense_is_named_and_ignored() -> None:
    found = read({"EXPLSCHED_LIMIT": "2000", "EXPLSCHED_SWEEP": "s"}, SCHEDULED)
    assert found == Found({"sweep": "s"}, ("EXPLSCHED_LIMIT is ignored: found '2000', accepted: 0.001 to 1",))


@pytest.mark.parametrize(
    ("former", "text", "option", "value"),
    [
        ("EXPLSCHED_CLASS", "high", SHARE, "high"),
        ("EXPLSCHED_CHECKPOINT_SIGNAL", "USR2", CHECKPOINT, "USR2"),
        ("EXPLSCHED_STOP", "1", EARLY_STOP, "1"),
    ],
)
def test_former_variables_are_read_and_the_present_one_is_named(
    former: str, text: str, option: Option, value: str
) -> None:
    found = read({former: text}, SCHEDULED)
    assert found.values == {option.name: value}
    assert found.warnings == (
        f"{former} is now {option.variable}; the former name will not be read by the next release",
    )
    assert read({former: "nonsense" * 99, option.variable: text}, SCHEDULED) == Found({option.name: value}, ())


def test_thousandths_are_read_and_the_fraction_is_named() -> None:
    found = read({"EXPLSCHED_LIMIT": "300"}, [LIMIT])
    assert found.values == {"limit": "0.3"}
    assert found.warnings[0].startswith("EXPLSCHED_LIMIT=300 is now EXPLSCHED_LIMIT=0.3;")


def test_a_command_line_takes_no_thousandths(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever types 30 means percent."""
    parser = argparse.ArgumentParser()
    add(parser, LIMIT)
    assert parser.parse_args(["--limit", "0.30"]).limit == "0.3"
    with pytest.raises(SystemExit):
        parser.parse_args(["--limit", "30"])
    assert "found '30', accepted: 0.001 to 1" in capsys.readouterr().err


def test_variables_of_sxbatch_alone_are_not_read_in_jobs() -> None:
    assert read({"SXBATCH_SWEEP": "s"}, SCHEDULED) == Found({}, ())
    found = read_for_submission({"SXBATCH_SWEEP": "s", "SXBATCH_STOP": "1"}, SCHEDULED)
    assert found.values == {"sweep": "s", "early-stop": "1"}
    assert "SXBATCH_SWEEP is now EXPLSCHED_SWEEP" in found.warnings[0]


def test_a_job_does_not_consent_for_those_that_it_submits() -> None:
    variables = {SWEEP.variable: "s", CHECKPOINT.variable: "USR1", EARLY_STOP.variable: "1", "EXPLSCHED_STOP": "1"}
    variables[ELASTIC.variable] = "1-8"
    assert set(read_for_submission(variables, SCHEDULED).values) == {"sweep", "checkpoint", "early-stop", "elastic"}
    assert set(read_for_submission({**variables, "SLURM_JOB_ID": "7"}, SCHEDULED).values) == {"sweep"}
    inside = read({**variables, "SLURM_JOB_ID": "7"}, SCHEDULED).values
    assert set(inside) == {"sweep", "checkpoint", "early-stop", "elastic"}


def test_what_is_exported_is_read_also_by_scripts_of_before() -> None:
    values = {"share": "high", "metric": "acc", "early-stop": "1"}
    variables = exported(values, SCHEDULED)
    assert variables == {
        METRIC.variable: "acc",
        EARLY_STOP.variable: "1",
        SHARE.variable: "high",
        "EXPLSCHED_CLASS": "high",
    }
    assert read(variables, SCHEDULED) == Found(values, ())
