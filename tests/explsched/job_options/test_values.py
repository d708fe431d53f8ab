"""What values of job options may look like. The C twin: tests/slurm_plugin/spank/options_test.cpp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explsched.job_options.table import (
    CHECKPOINT,
    DIRECTION,
    EARLY_STOP,
    ELASTIC,
    METRIC,
    OPTIONS,
    REQUEST,
    STAGES,
    SWEEP,
    Option,
)
from explsched.job_options.values import permille, sizes, stages_ms


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0.25", "0.25"),
        ("0.001", "0.001"),
        ("1", "1"),
        ("1.0", "1"),
        (".5", "0.5"),
        ("0.57", "0.57"),
        ("0.9999", "1"),
        ("0.0005", "0.001"),
    ],
)
def test_shares_of_a_gpu_are_fractions(text: str, canonical: str) -> None:
    assert REQUEST.canonical(text) == canonical


@pytest.mark.parametrize("text", ["", "0", "0.0004", "2", "1000", "1.5", "-1", "1e-1", "inf", "nan", " 1", ".", "²"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"accepted: 0\.001 to 1$"):
        REQUEST.canonical(text)


@given(st.integers(1, 1000))
def test_a_canonical_share_is_read_as_what_it_was(thousandths: int) -> None:
    text = REQUEST.canonical(f"{thousandths / 1000:g}")
    assert permille(text) == thousandths
    assert REQUEST.canonical(text) == text


@pytest.mark.parametrize("text", ["1-8", "8-32/8", "1-100000"])
def test_sizes_that_can_be(text: str) -> None:
    assert ELASTIC.canonical(text) == text


@pytest.mark.parametrize(
    "text", ["", "8", "0-4", "4-4", "8-1", "2-7/2", "1-8/0", "1-8/", "a-b", "1-8 ", "-1-8", "1-100001"]
)
def test_sizes_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 1-8 or 8-32/8 \(1 <= MIN < MAX <= 100000, both multiples of N\)"):
        ELASTIC.canonical(text)


def test_sizes_are_read() -> None:
    assert sizes("1-8") == (1, 8, None)
    assert sizes("8-32/8") == (8, 32, 8)


def test_stages_are_milliseconds_of_an_iteration() -> None:
    assert stages_ms("110/60/45.5/0") == (110, 60, 45.5, 0)


@pytest.mark.parametrize("text", ["1/2/3", "0/1/1/1", "1/0/0/0", "1/nan/1/1", "1/-1/1/1", "1/1e2/1/1", "1/2/3/4/5", ""])
def test_what_are_no_stages_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ITERATION/IO/GPU/NET"):
        STAGES.canonical(text)


@pytest.mark.parametrize("text", ["USR1", "SIGUSR1", "usr1", "sigusr1"])
def test_signals_are_named_with_or_without_sig(text: str) -> None:
    assert CHECKPOINT.canonical(text) == "USR1"


@pytest.mark.parametrize("text", ["KILL", "STOP", "CONT", "10", "", ";rm"])
def test_what_cannot_ask_for_a_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="accepted: USR1, USR2, HUP"):
        CHECKPOINT.canonical(text)


@pytest.mark.parametrize("text", ["my sweep", "eval/loss", "a&b=c%20", "\u00e4", "x" * 128])
def test_names_are_any_text(text: str) -> None:
    assert METRIC.canonical(text) == text


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[2J", "\x7f", "x" * 129, "\u00e4" * 65, "\udcff"])
def test_names_have_a_bounded_length_and_no_control_characters(text: str) -> None:
    with pytest.raises(ValueError, match="1 to 128 bytes of UTF-8 text without control characters"):
        SWEEP.canonical(text)


def test_words_are_those_of_a_list() -> None:
    assert (DIRECTION.canonical("max"), EARLY_STOP.canonical("1")) == ("max", "1")
    with pytest.raises(ValueError, match="found 'up', accepted: min, max"):
        DIRECTION.canonical("up")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@given(text=st.text(max_size=40) | st.from_regex(r"[0-9./-]{1,12}", fullmatch=True))
def test_a_canonical_value_is_its_own_canonical_form(option: Option, text: str) -> None:
    try:
        canonical = option.canonical(text)
    except ValueError:
        return
    assert option.canonical(canonical) == canonical
