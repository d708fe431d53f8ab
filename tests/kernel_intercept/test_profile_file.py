"""The profile file: its text, and changing it together with others."""

import multiprocessing
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_intercept.profile import store
from kernel_intercept.profile.store import Dim3, KernelKey, KernelProfile, ProfileError, Source, merged, name_hash
from tests.kernel_intercept.profiles import profile, stored

_UINT32 = st.integers(0, 2**32 - 1)
_DIM3 = st.builds(Dim3, _UINT32, _UINT32, _UINT32)
_KEYS = st.builds(KernelKey, st.integers(0, 2**64 - 1), _DIM3, _DIM3, _UINT32, st.integers(0, 999))
_PERMILLE = st.integers(0, 1000)
_NAMES = st.text(st.characters(categories=["Ll", "Lu", "Nd", "Pc", "Ps"]), max_size=300)
_PROFILES = st.builds(
    KernelProfile, _KEYS, _UINT32, st.integers(0, 2**64 - 1), _PERMILLE, _PERMILLE, st.sampled_from(Source), _NAMES
)


@given(st.lists(_PROFILES, unique_by=lambda p: p.key))
def test_what_is_written_is_read_back(profiles: list[KernelProfile]) -> None:
    parsed = store.parse(store.render(profiles))
    assert parsed.faults == ()
    assert set(parsed.profiles) == set(profiles)


def test_the_hash_is_fnv_1a() -> None:
    # Vectors of draft-eastlake-fnv: the empty string, "a" and "foobar".
    assert name_hash("") == 0xCBF29CE484222325
    assert name_hash("a") == 0xAF63DC4C8601EC8C
    assert name_hash("foobar") == 0x85944171F73967E8


def test_the_text_is_the_one_agreed_with_the_manager() -> None:
    lines = store.render([profile("k", shared_bytes=128, samples=7)]).splitlines()
    assert lines[0] == "# explsched kernel profiles 1"
    assert lines[1].split("\t")[:3] == ["name_hash", "grid", "block"]
    expected = f"{name_hash('k'):016x} 64,1,1 256,1,1 128 90 7 5000 300 400 timing k"
    assert lines[2] == expected.replace(" ", "\t")


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        (0, "12", "name_hash: found '12', accepted are 16 hexadecimal digits"),
        (1, "64,1", "grid: found '64,1', accepted is x,y,z"),
        (3, "-1", "shared_bytes: found '-1', accepted are whole numbers from 0 to 4294967295"),
        (5, "9" * 5000, "samples: found"),
        (7, "1001", "compute_permille: found '1001', accepted are whole numbers from 0 to 1000"),
        (9, "guess", "source: found 'guess', accepted are timing, nvml, ncu"),
        (10, "a\tb", "found 12 columns, accepted are 11"),
    ],
)
def test_a_bad_line_is_reported_and_the_others_count(column: int, value: str, reason: str, tmp_path: Path) -> None:
    good, bad = profile("good"), profile("bad", grid=65)
    lines = store.render([good, bad]).splitlines()
    at = next(index for index, line in enumerate(lines) if line.endswith("bad"))
    cells = lines[at].split("\t")
    cells[column] = value
    lines[at] = "\t".join(cells)
    path = tmp_path / "kernels"
    path.write_text("\n".join(lines))
    parsed = store.read(path)
    assert parsed.profiles == (good,)
    assert parsed.faults[0].line == at + 1
    assert parsed.faults[0].reason.startswith(reason)


def test_lines_are_numbered_as_editors_do() -> None:
    text = store.render([profile("a\u00e9b")]) + "x\x0by\n"
    parsed = store.parse(text.replace("\u00e9", "\x85"))
    assert [profile.name for profile in parsed.profiles] == ["a\x85b"]
    assert [fault.line for fault in parsed.faults] == [4]


def test_of_two_lines_with_one_key_the_later_counts() -> None:
    first, second = profile(gpu_ns=1), profile(gpu_ns=2)
    text = store.render([first]) + store.render([second]).splitlines()[2]
    parsed = store.parse(text)
    assert parsed.profiles == (second,)
    assert [str(fault) for fault in parsed.faults] == ["line 3: line 4 has the same key and counts"]


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    path.write_text("# explsched kernel profiles 2\n")
    with pytest.raises(ProfileError, match="line 1: found '# explsched kernel profiles 2', accepted is"):
        store.read(path)


def test_the_place_follows_the_base_directory_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert store.default_path() == tmp_path / ".cache/explsched/kernels-v1.tsv"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert store.default_path() == Path("/cache/explsched/kernels-v1.tsv")


def test_a_file_is_private_and_a_missing_one_empty(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernels"
    assert store.read(path).profiles == ()
    store.update(path, lambda old: [*old, profile()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {entry.name for entry in path.parent.iterdir()} == {"kernels", "kernels.lock"}


def test_a_failed_change_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    store.update(path, lambda _: [profile()])
    with pytest.raises(ProfileError, match="has characters a file cannot hold"):
        store.update(path, lambda old: [*old, profile("a\tb")])
    assert stored(path) == (profile(),)
    assert {entry.name for entry in tmp_path.iterdir()} == {"kernels", "kernels.lock"}


def _add(path: Path, first: int, count: int) -> None:
    for number in range(first, first + count):
        new = profile(f"k{number}")
        store.update(path, lambda old, new=new: merged(old, [new]))  # type: ignore[misc]


def test_no_change_of_several_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(path, 100 * worker, 10)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(stored(path)) == 40


def test_shares_follow_trust_and_times_the_event_timings() -> None:
    timed = profile(samples=30, gpu_ns=100, compute=1000, source=Source.TIMING)
    exported = profile(samples=0, gpu_ns=900, compute=250, source=Source.NCU)
    nvml = profile(samples=0, gpu_ns=100, compute=500, source=Source.NVML)
    for order in ([timed, exported, nvml], [exported, nvml, timed], [nvml, timed, exported]):
        [result] = merged([], order)
        assert (result.source, result.compute_permille, result.gpu_ns, result.samples) == (Source.NCU, 250, 100, 30)
    [again] = merged([timed], [replace(timed, samples=10, gpu_ns=500)])
    assert (again.samples, again.gpu_ns) == (40, 200)
    [newer] = merged([exported], [replace(exported, compute_permille=260, gpu_ns=800)])
    assert (newer.compute_permille, newer.gpu_ns) == (260, 800)


def test_what_two_files_hold_at_most_is_held_by_one() -> None:
    most = profile(samples=2**64 - 1, gpu_ns=2**64 - 1)
    assert store.parse(store.render(merged([most], [most]))) == store.Parsed((most,), ())
