"""Files of instance events: what is read, what is left out and why."""

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.colocation.events import LONGEST_LINE, Action, generate, parse_events, read_events, write_events
from simulation.colocation.instance import Instance, InstanceKind
from simulation.traces.trace import TraceError

INSTANCE = (
    '"service_name": "bert", "type": "inference", "gpu_num": 1, "sm_requests": 0.1, "sm_limits": 0.2, "memory": [5]'
)


def line(time: object = 0, action: str = "start", instance: str = INSTANCE, more: str = "") -> str:
    return f'{{"Time": {time}, "Action": "{action}", "Instance": {{{instance}{more}}}}}'


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    events = generate(60, seed=2).events
    path = tmp_path / "events.jsonl"
    write_events(path, events)
    found = read_events(path)
    assert found.rejected == ()
    assert [(e.time_s, e.action, e.instance) for e in found.events] == [
        (e.time_s, e.action, e.instance) for e in events
    ]
    # Keys are new, but tell the same instances apart.
    assert len({(a.key, b.key) for a, b in zip(events, found.events, strict=True)}) == 60


def test_units_and_one_memory_without_brackets() -> None:
    text = line(1.5, instance=INSTANCE.replace("[5]", "2.5"))
    (event,) = parse_events([text]).events
    assert event.time_s == 1.5
    assert event.instance == Instance("bert", InstanceKind.INFERENCE, 0.1, 0.2, (2560,))


def test_python_notation_is_read() -> None:
    text = (
        "{'Time': 3, 'Action': 'start', 'Instance': {'service_name': 't', 'type': 'training', 'gpu_num': 2, "
        "'sm_requests': 0.4, 'sm_limits': 0.6, 'memory': [25, 30], 'extra': None}}\n"
    )
    (event,) = parse_events([text]).events
    assert event.instance == Instance("t", InstanceKind.TRAINING, 0.4, 0.6, (25600, 30720))


def test_dates_count_from_the_first_and_do_not_mix_with_numbers() -> None:
    times = ['"2024-06-19 23:59:50"', '"2024-06-20 00:00:05"', '"yesterday"', 20, '"2024-06-19 23:59:55"']
    trace = parse_events([line(time) for time in times])
    assert [event.time_s for event in trace.events] == [0.0, 15.0]
    assert [row.line for row in trace.rejected] == [3, 4, 5]
    assert "accepted: times such as" in trace.rejected[0].reason
    assert "accepted: dates" in trace.rejected[1].reason
    assert "before that of an earlier line" in trace.rejected[2].reason
    mixed = parse_events([line(0), line('"2024-06-19 23:59:50"')])
    assert "accepted: seconds" in mixed.rejected[0].reason


def test_the_gpus_of_a_generated_training_need_the_same_memory() -> None:
    trainings = [e.instance for e in generate(200, seed=3).events if e.instance.kind is InstanceKind.TRAINING]
    assert {len(set(each.memory_mib)) for each in trainings} == {1}
    assert len({each.memory_mib[0] for each in trainings}) == 4


def test_a_delete_without_id_ends_the_newest_of_its_service() -> None:
    trace = parse_events([line(0), line(1), line(2, "delete"), line(3, "delete"), line(4, "delete")])
    assert [(e.action, e.key) for e in trace.events] == [
        (Action.START, 0),
        (Action.START, 1),
        (Action.DELETE, 1),
        (Action.DELETE, 0),
    ]
    assert [(r.line, r.reason) for r in trace.rejected] == [
        (5, "no instance of service 'bert' runs that could be deleted")
    ]


def test_a_delete_with_id_ends_that_one() -> None:
    named = [
        line(t, a, more=f', "instance_id": {i}') for t, a, i in ((0, "start", 8), (1, "start", 9), (2, "delete", 8))
    ]
    trace = parse_events([*named, line(3, "delete", more=', "instance_id": 8'), line(4, more=', "instance_id": 9')])
    assert [(e.action, e.key) for e in trace.events][2] == (Action.DELETE, 0)
    assert [r.reason for r in trace.rejected] == [
        "no instance_id 8 of service 'bert' runs that could be deleted",
        "instance_id 9 runs already",
    ]


def test_an_id_is_free_again_once_a_delete_without_one_has_ended_its_instance() -> None:
    first, second = (line(t, more=f', "instance_id": {i}') for t, i in ((0, 8), (1, 9)))
    trace = parse_events([first, second, line(2, "delete"), line(3, more=', "instance_id": 9'), line(4, "delete")])
    assert trace.rejected == ()
    assert [event.key for event in trace.events] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "neither JSON .* nor a Python dict"),
        ("__import__('os').getcwd()", "neither JSON .* nor a Python dict"),
        ("-" * 4000 + "1", "neither JSON"),
        ("[" * 4000, "Expected `object`, got `array`"),
        ('{"Time": 1, "x": ' + "[" * 4000, "neither JSON|nested"),
        ("{'Time': 1, 'x': " + "[" * 4000, "neither JSON"),
        ("[]", "Expected `object`, got `array`"),
        (line() + " " * LONGEST_LINE, "characters, at most 4096 are read"),
        (line(-1), "Expected `float` >= 0.*Time"),
        (line('"x"'), "Time .x. is a date, accepted: seconds"),
        (line(action="stop"), "Invalid enum value 'stop'.*Action"),
        (line(instance=INSTANCE.replace("inference", "serving")), "Invalid enum value 'serving'.*type"),
        (line(instance=INSTANCE.replace("0.1", "1.1")), r"<= 1.*sm_requests"),
        (line(instance=INSTANCE.replace("0.1", "0")), r"> 0.*sm_requests"),
        (line(instance=INSTANCE.replace("0.1", "0.3")), "sm_limits 0.2 is less than sm_requests 0.3"),
        (line(instance=INSTANCE.replace("[5]", "[]")), "length >= 1.*memory"),
        (line(instance=INSTANCE.replace("[5]", "[-5]")), "memory"),
        (line(instance=INSTANCE.replace("[5]", "[5, 5]")), "gpu_num is 1, but memory has 2 entries"),
        (
            line(instance=INSTANCE.replace("[5]", "[5, 5]").replace('"gpu_num": 1', '"gpu_num": 2')),
            "an instance of type inference takes one GPU, not 2",
        ),
        (line(instance=INSTANCE.replace("bert", "\\ud800")), "service_name .* cannot be printed"),
        (line(instance=INSTANCE.replace("bert", "\\u001b[2J")), "service_name .* cannot be printed"),
        ('{"Time": 1, "Action": "start"}', "missing required field `Instance`"),
    ],
)
def test_a_line_that_cannot_be_used_is_left_out_with_its_reason(text: str, reason: str) -> None:
    trace = parse_events([line(0), "", text, line(7)])
    assert [event.time_s for event in trace.events] == [0, 7]
    assert [rejected.line for rejected in trace.rejected] == [3]
    assert re.search(reason, trace.rejected[0].reason), trace.rejected[0].reason


def test_time_does_not_run_backwards() -> None:
    trace = parse_events([line(5), line(4), line(5)])
    assert [r.reason for r in trace.rejected] == ["Time 4.0 lies before that of an earlier line"]
    assert len(trace.events) == 2


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(line(0) + "\n", encoding="utf-8-sig")
    trace = read_events(path)
    assert (len(trace.events), trace.rejected) == (1, ())


def test_unusable_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with pytest.raises(TraceError, match="e.jsonl: No such file"):
        read_events(path)
    path.write_text("")
    with pytest.raises(TraceError, match="holds no usable event: it is empty"):
        read_events(path)
    path.write_text("nonsense\n")
    with pytest.raises(TraceError, match="holds no usable event: line 1: neither JSON"):
        read_events(path)
    path.write_bytes(gzip.compress(line(0).encode()))
    with pytest.raises(TraceError, match="compressed with gzip"):
        read_events(path)
    with pytest.raises(TraceError, match="a device or socket; accepted: a text file in UTF-8$"):
        read_events(Path("/dev/zero"))  # it has one line, which does not end
    with pytest.raises(TraceError, match="cannot be written"):
        write_events(tmp_path / "no" / "e.jsonl", ())


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(st.text(max_size=60), st.text(alphabet="{}[]()'\",:-+~ 019eTimeAction", max_size=200)), max_size=5
    )
)
def test_no_text_breaks_the_reader(texts: list[str]) -> None:
    trace = parse_events(texts)
    assert len(trace.events) + len(trace.rejected) == sum(bool(text.strip()) for text in texts)
