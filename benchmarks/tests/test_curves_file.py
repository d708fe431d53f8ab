from pathlib import Path

import numpy as np
import pytest

from benchmarks.exploratory.recorded import CurveError, LearningCurves
from benchmarks.tests.curve_builders import falling, recorded


def test_a_file_holds_what_was_saved(tmp_path: Path) -> None:
    saved = [
        recorded(falling(0.25, 0.1), data="digits", lr=3.2e-05, optimiser="adamw"),
        recorded([2.5, 1e20], model="cnn", epochs=100, seed=7, weight_decay=1e-4, dropout=0.2),
    ]
    LearningCurves(saved).save(tmp_path / "c.npz")
    loaded = LearningCurves.load(tmp_path / "c.npz")
    assert [curve.training for curve in loaded] == [curve.training for curve in saved]
    for kept, made in zip(loaded, saved, strict=True):
        np.testing.assert_allclose(kept.losses, made.losses, rtol=1e-6)
    assert [curve.diverged for curve in loaded] == [False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.npz"]


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match=r"none\.npz: cannot be read"):
        LearningCurves.load(tmp_path / "none.npz")


def test_another_kind_of_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("losses\n1\n")
    with pytest.raises(CurveError, match=r"text\.npz: cannot be read"):
        LearningCurves.load(tmp_path / "text.npz")


def test_missing_and_ragged_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    LearningCurves([recorded([1.0, 0.5])]).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{name: array for name, array in arrays.items() if name not in ("lr", "seed")})
    with pytest.raises(CurveError, match="lacks the arrays lr, seed"):
        LearningCurves.load(path)
    np.savez(path, **{**arrays, "losses": np.zeros(7)})
    with pytest.raises(CurveError, match=r"do not fit together \(1 curves, 7 losses\)"):
        LearningCurves.load(path)
