"""What a key takes is said in words an admin knows, with its unit."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from explsched.accepted_values import accepted_values

SECONDS = Meta(gt=0, le=86400, description="how long", extra={"unit": "seconds"})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[float, SECONDS], "a number of seconds above 0 to 86,400"),
        (Annotated[int, Meta(ge=1)], "a whole number from 1"),
        (Annotated[float, Meta(lt=1)], "a number below 1"),
        (
            Annotated[Annotated[int, Meta(ge=0, le=9)] | None, Meta(description="x")],
            "a whole number from 0 to 9 or null",
        ),
        (Annotated[Literal["a", "b"], Meta(description="x")], "one of a, b"),
        (Annotated[tuple[str, ...], Meta(description="x")], "a list of words"),
        (tuple[Annotated[float, Meta(gt=0)], ...], "a list, each a number above 0"),
        (Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)], "a list of words, of length from 1 to 16"),
        (Annotated[str, Meta(pattern="^[a-z]+$")], "a word of the form ^[a-z]+$"),
        (Annotated[Path | None, Meta(description="x")], "a path or null"),
        (dict[str, bool], "a mapping of names to values"),
        (bool, "true or false"),
    ],
)
def test_the_words_for_a_type(kind: Any, words: str) -> None:
    assert accepted_values(kind) == words
