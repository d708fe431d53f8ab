"""The word `explsched:` of a job's comment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explsched.job_options.comment import read, write
from explsched.job_options.table import SCHEDULED

HOSTILE = "a b&early-stop=1#$(x)\u00e9+%20'"
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)


def test_a_comment_without_our_word_says_nothing() -> None:
    assert read("") is None
    assert read("my own words, explsched is nice") is None


def test_an_empty_word_takes_part_without_options() -> None:
    assert read("mine explsched: too") == {}


@given(NAMES, NAMES)
def test_what_is_written_is_read(sweep: str, metric: str) -> None:
    values = {"sweep": sweep, "metric": metric, "checkpoint": "USR2", "elastic": "8-32/8", "limit": "0.3"}
    word = write(values)
    assert len(word.split()) == 1
    assert read(f"others {word} more") == values


def test_hostile_text_is_one_value() -> None:
    assert write({"sweep": HOSTILE}) == "explsched:sweep=a%20b%26early-stop%3D1%23%24%28x%29%C3%A9%2B%2520%27"
    assert read(write({"sweep": HOSTILE})) == {"sweep": HOSTILE}


def test_plus_is_a_blank_for_those_who_write_it_by_hand() -> None:
    assert read("explsched:sweep=my+sweep") == {"sweep": "my sweep"}


def test_options_without_a_value_are_not_given() -> None:
    assert read("explsched:sweep=&checkpoint=") == {}
    assert write({"sweep": "", "metric": "acc"}) == "explsched:metric=acc"
    assert write({}) == ""


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("explsched:swep=a", "unknown key 'swep'.*known: sweep, metric"),
        ("explsched:mps=1", "unknown key 'mps'"),
        ("explsched:early-stop=yes", "early-stop: found 'yes', accepted: 0, 1"),
        ("explsched:share=all", "share: found 'all', accepted: high, best-effort"),
        ("explsched:limit=1.5", "accepted: 0.001 to 1"),
        ("explsched:request=300", "accepted: 0.001 to 1"),
        ("explsched:job-class=vip", "accepted: guaranteed, opportunistic"),
        ("explsched:direction=up", "accepted: min, max"),
        ("explsched:stages=1/2/3", "ITERATION/IO/GPU/NET"),
        ("explsched:checkpoint=KILL", "accepted: USR1"),
        ("explsched:checkpoint=;rm", "accepted: USR1"),
        ("explsched:elastic=8", "MIN-MAX or MIN-MAX/N"),
        ("explsched:elastic=2-7/2", "both multiples of N"),
        ("explsched:a", "not of the form"),
        ("explsched:sweep=%ff", "not of the form"),
        ("explsched:sweep=a&sweep=b", "twice"),
        ("explsched:early-stop=1 explsched:early-stop=0", "2 entries"),
    ],
)
def test_nonsense_is_named(comment: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(comment)


def test_keys_are_written_in_the_order_of_the_table() -> None:
    names = [option.name for option in SCHEDULED]
    word = write(dict.fromkeys(reversed(names), "1"))
    assert word == "explsched:" + "&".join(f"{name}=1" for name in names)
