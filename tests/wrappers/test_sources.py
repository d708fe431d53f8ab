"""Files that a training writes anyway: rows, JSON lines, TensorBoard's events; whole, in pieces, begun anew."""

from __future__ import annotations

import base64
import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from explsched.job_options.table import FOLLOW, STEP_KEY, VALUE_KEY
from wrappers.event_files import EventReporter, EventTail, masked_crc32c
from wrappers.follow import LogTail, Reading, Reporter, row_reader
from wrappers.sources import followed

SXRUN = [sys.executable, "-m", "wrappers.sxrun"]
# Written by tensorboard 2.21: the version record, then loss and acc as simple values of steps 0 to 2, then loss as a
# tensor, of step 300 with float_val and of step 301 with tensor_content.
EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCeasUXLLwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "g9Cu8iQAAAAAAAAAQiuATQkAAAAAAADwPyoZCgsKBGxvc3MVAACAPwoKCgNhY2MVAAAAAKICruomAAAAAAAAAHNP4wAJAAAAAAAA8D8QASoZCgsK"
    "BGxvc3MVAAAAPwoKCgNhY2MVAACAPjmreAgmAAAAAAAAAHNP4wAJAAAAAAAA8D8QAioZCgsKBGxvc3MVq6qqPgoKCgNhY2MVAAAAP+0nZ8wgAAAA"
    "AAAAACntqVAJAAAAAAAAAEAQrAIqEgoQCgRsb3NzQggIASoEAAAAPt3bV/sgAAAAAAAAACntqVAJAAAAAAAAAEAQrQIqEgoQCgRsb3NzQggIASIE"
    "AACAPdxCHEo="
)
LOSSES = [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (300, 0.125), (301, 0.0625)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's environment; returns its progress file."""
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(tmp_path / "progress"))
    for name in ("SLURM_RESTART_COUNT", "EXPLSCHED_METRIC", "EXPLSCHED_FOLLOW", "EXPLSCHED_VALUE_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "progress"


def reports(path: Path, metric: str = "loss") -> list[tuple[object, object]]:
    if not path.exists():
        return []
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [(entry["step"], entry["value"]) for entry in entries if entry.get("metric") == metric]


def no_time_passes() -> float:
    return 0.0


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_events_may_come_in_any_pieces(job: Path, piece: int) -> None:
    reporter = EventReporter(None, "test")
    for at in range(0, len(EVENTS), piece):
        reporter.feed(EVENTS[at : at + piece])
    assert reports(job) == LOSSES


def test_a_tag_is_chosen_and_reported_as_the_jobs_metric(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_METRIC", "accuracy")
    EventReporter("acc", "test").feed(EVENTS)
    assert reports(job, "accuracy") == [(0, 0.0), (1, 0.25), (2, 0.5)]


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked_crc32c(length)) + payload + b"crc."


def test_pictures_are_passed_over_and_broken_records_told(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = EventReporter(None, "test")
    picture = record(bytes(3 << 20))
    for at in range(0, len(picture), 1 << 20):
        reporter.feed(picture[at : at + (1 << 20)])
    reporter.feed(record(b"\x2a\xff") + record(b"\x0f") + EVENTS)
    assert reports(job) == LOSSES
    assert capsys.readouterr().err.count("cannot be read") == 2
    reporter.feed(b"this is no event file at all")
    assert "no event file" in capsys.readouterr().err


def test_half_a_record_of_a_run_that_was_killed_does_not_spoil_the_next_file(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.tfevents.1"
    reporter, tail = EventReporter(None, "test"), LogTail(path)
    path.write_bytes(EVENTS[:100])
    assert tail.pass_on(reporter)
    (tmp_path / "new").write_bytes(EVENTS)
    (tmp_path / "new").replace(path)
    assert tail.pass_on(reporter)
    assert reports(job) == LOSSES


def test_the_newest_file_of_a_directory_is_followed(job: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "run").mkdir(parents=True)
    (logs / "run" / "events.out.tfevents.1").write_bytes(EVENTS)  # a former run's
    reporter, tail = EventReporter(None, "test"), EventTail(logs, no_time_passes)
    assert not tail.pass_on(reporter)
    (logs / "run" / "events.out.tfevents.2").write_bytes(EVENTS[:200])
    assert tail.pass_on(reporter)
    (logs / "run" / "events.out.tfevents.3").write_bytes(EVENTS)
    assert tail.pass_on(reporter)
    assert not tail.pass_on(reporter)
    assert reports(job)[-5:] == LOSSES


@pytest.mark.parametrize("half", [60, 200, len(EVENTS)])
def test_a_file_goes_on_beside_newer_ones_until_they_have_the_tag(job: Path, tmp_path: Path, half: int) -> None:
    """As those of PyTorch's `add_scalars` beside the writer's own."""
    main, newer = tmp_path / "events.out.tfevents.1", tmp_path / "loss_train" / "events.out.tfevents.2"
    newer.parent.mkdir()
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    without = EVENTS.replace(b"loss", b"lass")
    main.write_bytes(EVENTS[:half])
    tail.pass_on(reporter)
    newer.write_bytes(without[:half])
    tail.pass_on(reporter)
    main.write_bytes(EVENTS)
    newer.write_bytes(without)
    tail.pass_on(reporter)
    assert reports(job) == LOSSES
    newer.write_bytes(without + EVENTS)
    tail.pass_on(reporter)
    with main.open("ab") as file:
        file.write(EVENTS)
    tail.pass_on(reporter)
    assert reports(job) == LOSSES + LOSSES


def at_step_0(value: float) -> bytes:
    """A file of `add_hparams`: loss, of step 0."""
    return of_step(0, value)


def of_step(step: int, value: float) -> bytes:
    """A record of loss; of step 0 as that is written, without a step."""
    simple = b"\x0a\x04loss\x15" + struct.pack("<f", value)
    at = b"\x10" + bytes([step]) if step else b""
    return record(at + b"\x2a" + bytes([len(simple) + 2]) + b"\x0a" + bytes([len(simple)]) + simple)


@pytest.mark.parametrize("seen", [0, 150, len(EVENTS)])
def test_a_value_that_add_hparams_writes_beside_the_curve_is_none_of_it(job: Path, tmp_path: Path, seen: int) -> None:
    """At the start, in the middle, or at the end."""
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    curve, values = tmp_path / "events.out.tfevents.1", tmp_path / "1764300000.5" / "events.out.tfevents.2"
    curve.write_bytes(EVENTS[:seen])
    tail.pass_on(reporter)
    values.parent.mkdir()
    values.write_bytes(at_step_0(-1.0))
    tail.pass_on(reporter)
    curve.write_bytes(EVENTS)
    tail.finish(reporter)
    reporter.close()
    assert reports(job) == LOSSES


def test_of_files_that_are_written_together_the_newest_counts_from_the_start(job: Path, tmp_path: Path) -> None:
    """As Keras writes one for the training and one for the validation."""
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    training, validation = tmp_path / "events.out.tfevents.1", tmp_path / "events.out.tfevents.2"
    for end in (150, len(EVENTS)):
        training.write_bytes(EVENTS[:end])
        validation.write_bytes(EVENTS[:end])
        tail.pass_on(reporter)
    assert reports(job) == LOSSES


def test_of_files_in_directories_of_their_own_that_are_found_together_the_newest_counts(
    job: Path, tmp_path: Path
) -> None:
    """As of a validation beside the training."""
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    for at, steps in enumerate((range(10, 130, 10), (100, 120))):
        (tmp_path / str(at)).mkdir()
        values = b"".join(of_step(step, float(at)) for step in steps)
        (tmp_path / str(at) / f"events.out.tfevents.{at}").write_bytes(values)
    tail.finish(reporter)
    reporter.close()
    assert reports(job) == [(100, 1.0), (120, 1.0)]


def test_of_files_that_are_found_together_the_older_one_counts_up_to_the_newers_first_step(
    job: Path, tmp_path: Path
) -> None:
    """As of a training that goes on in a new file."""
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    (tmp_path / "events.out.tfevents.2").write_bytes(b"".join(of_step(step, -1.0) for step in (5, 6, 7)))
    (tmp_path / "events.out.tfevents.1").write_bytes(b"".join(of_step(step, 1.0) for step in (1, 2, 3, 4, 5)))
    tail.finish(reporter)
    reporter.close()
    assert reports(job) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, -1.0), (6, -1.0), (7, -1.0)]


def test_a_value_of_step_0_counts_if_no_other_comes(job: Path, tmp_path: Path) -> None:
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    (tmp_path / "events.out.tfevents.1").write_bytes(at_step_0(0.5) + at_step_0(0.25))
    tail.finish(reporter)
    assert reports(job) == []
    reporter.close()
    assert reports(job) == [(0, 0.25)]


def test_where_looking_takes_long_new_files_are_looked_for_seldom_and_at_the_end(job: Path, tmp_path: Path) -> None:
    readings_s = itertools.count(0.0, 10.0)  # each look takes 10 s
    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, lambda: next(readings_s))
    assert not tail.pass_on(reporter)  # the first look that finds nothing
    (tmp_path / "events.out.tfevents.1").write_bytes(EVENTS)
    assert not tail.pass_on(reporter)
    while not tail.pass_on(reporter):
        assert next(readings_s) < 150.0  # 60 s at most
    assert reports(job) == LOSSES
    (tmp_path / "events.out.tfevents.2").write_bytes(EVENTS)
    tail.catch_up(reporter)
    assert reports(job) == LOSSES
    with (tmp_path / "events.out.tfevents.1").open("ab") as file:  # known: it is read all the while
        file.write(EVENTS)
    tail.catch_up(reporter)
    assert reports(job) == 2 * LOSSES
    tail.follow(reporter, lambda: True)
    assert reports(job) == 3 * LOSSES


def test_rows_below_a_header(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.csv"
    reporter = Reporter(row_reader(path, "epoch", "val_loss"), "test")
    reporter.feed(b"0,0.5\n")  # before any header
    reporter.feed(b'epoch,"val_loss",note\n0,0.5,a\n1,,b\n,0.1,c\n\n2,nan,d\n3,0.25\nx,0.1,e\n')
    assert reports(job) == [(0, 0.5), (2, None), (3, 0.25)]
    reporter.feed(b"val_loss,epoch\n0.125,4\n")  # begun anew
    assert reports(job)[-1] == (4, 0.125)
    told = capsys.readouterr().err
    assert "no header with the columns 'epoch' and 'val_loss'" in told
    assert "'x'" in told


def test_a_header_may_follow_a_byte_order_mark(job: Path, tmp_path: Path) -> None:
    reporter = Reporter(row_reader(tmp_path / "m.csv"), "test")
    reporter.feed("\ufeffstep,loss\r\n1,0.5\r\n".encode())
    assert reports(job) == [(1, 0.5)]


def test_a_header_that_changes_in_place_is_read_again(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Lightning's CSVLogger writes: it sorts the columns, and writes all rows anew when there is another."""
    path = tmp_path / "metrics.csv"
    reporter, tail = Reporter(row_reader(path, "epoch", "val_loss"), "test"), LogTail(path)
    path.write_text("epoch,train_loss\r\n0,9\r\n0,8\r\n")
    assert tail.pass_on(reporter)
    for written in (
        "epoch,train_loss,val_loss\r\n0,9,\r\n0,8,\r\n0,,0.5\r\n",
        "accuracy,epoch,train_loss,val_loss\r\n,0,9,\r\n,0,8,\r\n,0,,0.5\r\n0.1,1,,0.25\r\n",
    ):
        inode = path.stat().st_ino
        path.write_text(written)
        assert path.stat().st_ino == inode
        assert tail.pass_on(reporter)
    with path.open("a") as file:
        file.write("0.2,2,,0.125\r\n")
    assert tail.pass_on(reporter)
    assert not tail.pass_on(reporter)
    assert reports(job) == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert capsys.readouterr().err.count("test: ") == 1  # one header had no val_loss


@pytest.mark.parametrize("end", [b"\r\n", b"\r\r\n", b"\r"])
def test_a_carriage_return_ends_a_header_that_stands_already(job: Path, tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(end.join((b"step,loss", b"1,0.5", b"")))
    reporter, tail = Reporter(row_reader(path), "test"), LogTail(path)
    with path.open("ab") as file:
        file.write(b"2,0.25" + end)
    reporter.feed(tail.read())
    assert reports(job) == [(2, 0.25)]


def test_a_line_that_is_no_row_keeps_no_command_from_running(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"0 %\r100 %\rstep,loss\n")
    command = [*SXRUN, "--follow", str(path), "--", "echo", "ran"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"ran\n"


def test_of_a_file_that_goes_on_only_the_header_is_read_again(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.tsv"
    path.write_text("step\tloss\n1\t0.5\n")
    reporter, tail = Reporter(row_reader(path), "test"), LogTail(path)
    with path.open("a") as file:
        file.write("2\t0.25\n")
    reporter.feed(tail.read())
    assert reports(job) == [(2, 0.25)]


def test_of_several_headers_that_are_there_already_the_last_one_counts(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,lr,loss\n1,0.1,0.5\nstep,loss,lr\n2,0.4,0.1\nsteps\nstep,")
    reporter, tail = Reporter(row_reader(path), "test"), LogTail(path)
    with path.open("a") as file:
        file.write("\n3,0.25,0.1\n")
    reporter.feed(tail.read())
    assert reports(job) == [(3, 0.25)]


@pytest.mark.parametrize("head", ["# a run of today\n", "\n", "epoch,step,loss\n"])
def test_a_header_behind_the_first_line_of_a_long_file_counts(tmp_path: Path, head: str) -> None:
    rows = tmp_path / "log.csv"
    rows.write_text(head + "step,loss\n" + "1,0.5\n" * (1 << 18))
    assert row_reader(rows)(b"2,0.25") == Reading(2, {"loss": 0.25})


def test_of_a_large_file_only_the_ends_are_searched_for_headers(tmp_path: Path) -> None:
    """A command does not wait until all of it is read."""
    rows = tmp_path / "log.csv"
    many = "1,0.5\n" * (3 << 20)
    rows.write_text("step,loss\n" + many + "loss,accuracy,step\n" + many)
    assert row_reader(rows)(b"2,0.25") == Reading(2, {"loss": 0.25})
    with rows.open("a") as file:
        file.write("loss,step\n" + "0.5,1\n" * 1000 + "step" * (1 << 16) + "\n")
    assert row_reader(rows)(b"0.25,2") == Reading(2, {"loss": 0.25})


def replace_rows(path: Path, *losses: float) -> None:
    """Write rows of steps 1, 2, ... anew, as with pandas or json after each epoch, and put them in the file's place."""
    rows = dict(enumerate(losses, 1))
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in rows.items()]
    if path.suffix == ".csv":
        lines = ["step,loss", *(f"{step},{loss}" for step, loss in rows.items())]
    new = path.with_name("new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(path)


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
def test_of_a_file_that_is_replaced_each_step_is_reported_once(job: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    reporter, tail = followed({FOLLOW.name: str(path)}, "test", None, "loss")
    for losses in ((0.5,), (0.5, 0.25), (0.4, 0.2, 0.1)):
        replace_rows(path, *losses)
        assert tail.pass_on(reporter)
    assert reports(job) == [(1, 0.5), (2, 0.25), (3, 0.1)]


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ((0.5, 0.25, 0.125), [(3, 0.125)]),
        ((0.5, 0.2), [(1, 0.5), (2, 0.2)]),  # goes on from a checkpoint after the first step
        ((0.4,), [(1, 0.4)]),  # begins anew
    ],
)
def test_rows_of_a_former_run_are_not_reported_again_where_the_file_is_replaced(
    job: Path, tmp_path: Path, name: str, losses: tuple[float, ...], told: list[tuple[int, float]]
) -> None:
    path = tmp_path / name
    replace_rows(path, 0.5, 0.25)
    reporter, tail = followed({FOLLOW.name: str(path)}, "test", None, "loss")
    replace_rows(path, *losses)
    assert tail.pass_on(reporter)
    assert reports(job) == told
    replace_rows(path, *losses, 0.0625)
    assert tail.pass_on(reporter)
    assert reports(job) == [*told, (len(losses) + 1, 0.0625)]


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
def test_a_run_from_scratch_that_repeats_its_rows_is_reported(job: Path, tmp_path: Path, name: str) -> None:
    """With the same seed it writes what the former run wrote; a job that reports nothing is never preempted."""
    path, losses = tmp_path / name, (0.5, 0.25, 0.125)
    replace_rows(path, *losses)
    reporter, tail = followed({FOLLOW.name: str(path)}, "test", None, "loss")
    for steps in range(len(losses) + 1):
        replace_rows(path, *losses[:steps])
        tail.catch_up(reporter)
    assert reports(job) == [(1, 0.5), (2, 0.25), (3, 0.125)]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("m.csv", r"printf 'step,loss\n1,0.5\n2,0.25\n' > m.csv"),
        ("m.jsonl", """printf '{"step": 1, "loss": 0.5}\\n{"step": 2, "loss": 0.25}\\n' > m.jsonl"""),
        ("logs/", "mkdir logs; cp events logs/events.out.tfevents.9"),
        ("events.tfevents.1", "cp events events.tfevents.1"),
    ],
)
def test_sxrun_follows_what_the_command_writes(job: Path, tmp_path: Path, name: str, write: str) -> None:
    (tmp_path / "events").write_bytes(EVENTS)
    argv = [*SXRUN, "--follow", name, "--total-steps", "9", "--", "sh", "-c", write]
    subprocess.run(argv, cwd=tmp_path, check=True, env=None)
    assert [step for step, _ in reports(job)][-2:] == ([300, 301] if "tfevents" in write else [1, 2])


def test_what_is_followed_can_stand_in_the_environment(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLSCHED_FOLLOW", str(tmp_path / "m.csv"))
    monkeypatch.setenv("EXPLSCHED_VALUE_KEY", "val")
    subprocess.run([*SXRUN, "sh", "-c", rf"printf 'step,val\n1,0.5\n' > {tmp_path}/m.csv"], check=True)
    assert reports(job) == [(1, 0.5)]


def test_a_variable_that_names_what_cannot_be_followed_is_told_and_the_command_runs(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLSCHED_FOLLOW", "train.log")
    done = subprocess.run([*SXRUN, "echo", "ran"], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"
    assert done.stderr.startswith("sxrun: EXPLSCHED_FOLLOW is ignored: --follow train.log: unknown kind of file")


@pytest.mark.parametrize("option", ["--follow", "--metrics-jsonl"])
def test_of_several_tasks_of_a_step_the_first_one_reports_what_all_see(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    path = tmp_path / "m.jsonl"
    write = f'echo \'{{"step": 1, "loss": 0.5}}\' >>{path}'
    for task in ("1", "0"):
        monkeypatch.setenv("SLURM_PROCID", task)
        done = subprocess.run([*SXRUN, option, str(path), "--", "sh", "-c", write], capture_output=True, check=True)
        assert done.stderr == b""
    assert reports(job) == [(1, 0.5)]


def test_what_is_followed_may_have_a_name_that_is_no_utf_8(job: Path, tmp_path: Path) -> None:
    write = b"printf 'step,loss\\n1,0.5\\n' > caf\xe9.csv"
    subprocess.run([*SXRUN, "--follow", b"caf\xe9.csv", "--", "sh", "-c", write], cwd=tmp_path, check=True)
    assert reports(job) == [(1, 0.5)]


def test_an_sxrun_inside_does_not_report_once_more(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script that is run by one, or in each of a step's tasks."""
    monkeypatch.setenv("EXPLSCHED_FOLLOW", str(tmp_path / "m.csv"))
    monkeypatch.setenv("EXPLSCHED_MEASURE_STAGES", "1")
    write = rf"printf 'step,loss\n1,0.5\n' > {tmp_path}/m.csv"
    done = subprocess.run([*SXRUN, *SXRUN, "sh", "-c", write], check=True, capture_output=True, text=True)
    assert reports(job) == [(1, 0.5)]
    assert done.stderr.count("stages are not measured") == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {FOLLOW.name: "train.log"},
            "--follow train.log: unknown kind of file; accepted: .csv,",
        ),
        (
            {FOLLOW.name: "logs/", STEP_KEY.name: "s"},
            "--step-key s: TensorBoard's events have their step without",
        ),
    ],
)
def test_what_cannot_be_followed_is_said(values: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        followed({**values, VALUE_KEY.name: "v"}, "test", None, "loss")


def test_a_directory_of_events_may_lose_directories_meanwhile(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As checkpoints that are removed while the directory is looked through."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "run").mkdir()
    look = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "gone":
            Path(path).rmdir()
        return look(path)

    reporter, tail = EventReporter(None, "test"), EventTail(tmp_path, no_time_passes)
    (tmp_path / "run/events.out.tfevents.9").write_bytes(EVENTS)
    monkeypatch.setattr("os.scandir", scandir)
    assert tail.pass_on(reporter)
    assert not (tmp_path / "gone").exists()
    assert reports(job) == LOSSES


@pytest.mark.parametrize(("kind", "words"), [(".csv", "too long"), (".jsonl", "too long"), ("/", "no progress")])
def test_the_command_runs_though_what_is_followed_cannot_be_looked_at(job: Path, kind: str, words: str) -> None:
    """A name that is too long stands for directories that are closed, which none is for root."""
    argv = [*SXRUN, "--follow", f"{300 * 'x'}{kind}", "--", "echo", "ran"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_usage_of_sxrun() -> None:
    done = subprocess.run([*SXRUN, "--follow", "x.log", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown kind of file" in done.stderr
