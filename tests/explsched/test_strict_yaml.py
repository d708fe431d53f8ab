"""Strict reading of YAML sections: required keys, mappings of free names, keys that occur twice."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from explsched.strict_yaml import ConfigError, Key, Section, accepted_values, keys, mapping, read

SECONDS = Meta(gt=0, le=86400, description="how long", extra={"unit": "seconds"})
Name = Annotated[str, Meta(pattern="^[a-z]+$")]


class Door(Section, frozen=True):
    colour: Annotated[str, Meta(description="of the paint")]
    width_mm: Annotated[int, Meta(ge=1, description="clear width")] = 800


class House(Section, frozen=True):
    doors: dict[Name, Door]
    gate: Door | None = None
    storeys: Annotated[int, Meta(ge=1, description="above ground")] = 1


def faults_of(text: str) -> list[str]:
    faults: list[str] = []
    read(House, mapping(text, Path("house.yaml")), faults)
    return faults


def test_a_mapping_of_sections_is_read() -> None:
    faults: list[str] = []
    house = read(House, mapping("doors: {front: {colour: red}}", Path("house.yaml")), faults)
    assert house == House(doors={"front": Door(colour="red")})
    assert faults == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("storeys: 2", "doors: is missing"),
        ("doors: {front: {}}", "doors.front.colour: is missing"),
        ("doors: {front: {color: red, width_mm: 0}}", "unknown key 'doors.front.color'; did you mean 'colour'"),
        ("doors: {front: {colour: red, width_mm: 0}}", "doors.front.width_mm: must be a whole number from 1, found 0"),
        ("doors: {Front1: {colour: red}}", "doors: name 'Front1': must be a string matching"),
        ("doors: [front]", "doors: must be a mapping of names"),
        ("gate: {colour: red, width: 1}", "unknown key 'gate.width'; did you mean 'width_mm'"),
        ("doors: {front: red}", "doors.front: must be a mapping of keys to values, found 'red'"),
        ("doors: {front: }", "doors.front: must be a mapping of keys to values, found nothing"),
    ],
)
def test_faults_name_the_whole_path(text: str, words: str) -> None:
    import re

    assert any(re.search(words, fault) for fault in faults_of(text)), faults_of(text)


def test_a_line_break_at_the_end_matches_no_pattern() -> None:
    class Names(Section, frozen=True):
        one: Name = "a"
        several: Annotated[tuple[Name, ...], Meta(description="names")] = ()
        words: tuple[str, ...] = ()

    faults: list[str] = []
    read(Names, {"one": "a\n", "several": ["a", "b\n"], "words": ["echo\n"]}, faults)
    assert [fault.split(": ")[0] for fault in faults] == ["one", "several"]
    assert "doors: name 'front\\n': must be a string matching" in faults_of('doors: {"front\\n": {colour: red}}')[0]


def test_a_key_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"house.yaml, line 3: is not YAML: key 'front' occurs twice"):
        mapping("doors:\n  front: {colour: red}\n  front: {colour: blue}\n", Path("house.yaml"))


def test_anchors_and_merges_work() -> None:
    text = "doors:\n  front: &d {colour: red}\n  back: {<<: *d, width_mm: 900}\n"
    assert faults_of(text) == []


def test_every_key_is_described() -> None:
    assert [(key.name, key.default) for key in keys(House)] == [
        ("doors.NAME.colour", "required"),
        ("doors.NAME.width_mm", "800"),
        ("gate.colour", "required"),
        ("gate.width_mm", "800"),
        ("storeys", "1"),
    ]
    assert next(keys(House)) == Key("doors.NAME.colour", "of the paint", "a string", "required")


def test_an_optional_section_may_be_null() -> None:
    assert faults_of("{doors: {}, gate: null}") == []


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
        (Annotated[tuple[str, ...], Meta(description="x")], "a list of strings"),
        (tuple[Annotated[float, Meta(gt=0)], ...], "a list, each a number above 0"),
        (Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)], "a list of strings, of length from 1 to 16"),
        (Annotated[str, Meta(pattern="^[a-z]+$")], "a string matching ^[a-z]+$"),
        (Annotated[Path | None, Meta(description="x")], "a path or null"),
        (dict[str, bool], "a mapping of names to values"),
        (bool, "true or false"),
    ],
)
def test_the_words_for_a_type(kind: Any, words: str) -> None:
    assert accepted_values(kind) == words
