"""Two tiny trainings are recorded for real."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="recording needs the extra `demo`: torch is not installed")
pytest.importorskip("sklearn", reason="recording needs the extra `demo`: scikit-learn is not installed")

from benchmarks.curves.record import losses, record
from benchmarks.curves.search import SPACES, trainings
from benchmarks.exploratory.recorded import Training

IRIS = Training("iris", "mlp", 16, 1, "adamw", 0.01, 0.0, 0.0, 16, 3, 1)
HOPELESS = replace(IRIS, data="diabetes", optimiser="sgd", lr=1e6, epochs=30)


def test_trainings_are_recorded_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = record([IRIS], tmp_path / "c.npz")
    assert [len(curve.losses) for curve in first] == [4]
    assert first[0].losses[-1] < first[0].losses[0]
    both = record([IRIS, replace(IRIS, seed=2)], tmp_path / "c.npz")
    assert [curve.training.seed for curve in both] == [1, 2]
    assert "1 trainings" in capsys.readouterr().out.splitlines()[-1]


def test_a_training_can_be_repeated() -> None:
    again = np.array([list(losses(IRIS)), list(losses(IRIS)), list(losses(replace(IRIS, seed=2)))])
    assert again[0].tolist() == again[1].tolist()
    assert again[0].tolist() != again[2].tolist()


def test_a_diverged_training_ends_with_its_last_number(tmp_path: Path) -> None:
    curve = record([HOPELESS], tmp_path / "c.npz")[0]
    assert curve.diverged
    assert 1 <= len(curve.losses) < 30
    assert np.isfinite(curve.losses).all()


def test_every_space_can_be_trained() -> None:
    for training in trainings(1):
        short = replace(training, epochs=1, batch=512)
        assert len(list(losses(short))) in (1, 2), training
    assert len({training.sweep for training in trainings(1)}) == len(SPACES)


def test_the_search_has_no_training_twice() -> None:
    wanted = trainings(18)
    assert len(set(wanted)) == len(wanted) >= 300
