"""Trains small models by the search of TaskSet, so that methods are chosen on other tasks than those that judge them.

TaskSet (Metz et al., arXiv 2002.11887) draws the eight hyper-parameters of an Adam with regularisation and decay from
wide ranges, trains small models with each, and reports the validation loss 51 times. Here all configurations of a task
are trained at once, as one batch of models. Tasks named `late` are unlike it: narrow ranges, a learning rate that
falls to 0, and steps of different cost, so that nearly all are good and who is best shows at the end, as in AlgoPerf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from sklearn import datasets

REPORTS = 51
RANGES: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-8, 1e1),
    "beta1": (1e-4, 1e0),
    "beta2": (1e-6, 1e0),
    "epsilon": (1e-10, 1e3),
    "l1": (1e-8, 1e1),
    "l2": (1e-8, 1e1),
    "linear_decay": (1e-7, 1e-4),
    "exponential_decay": (1e-6, 1e-3),
}
"""TaskSet's `adam8p_wide_grid`; drawn evenly on a logarithmic scale, the betas as their distance from 1."""

_LATE: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-3, 3e-2),
    "beta1": (2e-2, 2e-1),
    "beta2": (1e-3, 1e-1),
    "epsilon": (1e-8, 1e-6),
    "l1": (1e-8, 1e-6),
    "l2": (1e-6, 1e-3),
    "linear_decay": (9e-5, 1e-4),
    "exponential_decay": (1e-6, 1e-5),
}
_STEPS_OF_TASKSET = 10_000  # its decays are per step of these
_WHOLE_S = 3600.0

Params = dict[str, jax.Array]
Carry = tuple[Params, Params, Params, jax.Array]  # parameters, both moments, steps done
Data = tuple[np.ndarray, np.ndarray]


class Problem(NamedTuple):
    """What is learnt: parameters by random key, a loss of (parameters, inputs, targets), and data."""

    start: Callable[[jax.Array], Params]
    loss: Callable[[Params, jax.Array, jax.Array], jax.Array]
    train: Data
    valid: Data


def _split(x: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[Data, Data]:
    """A quarter for validation, inputs standardised."""
    order = np.random.default_rng(seed).permutation(len(x))
    x = ((x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)).astype(np.float32)
    valid, train = np.split(order, [len(x) // 4])
    return (x[train], y[train]), (x[valid], y[valid])


def _weights(key: jax.Array, **shapes: tuple[int, ...]) -> Params:
    """Normal, by 1 / sqrt(inputs); vectors are 0."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jnp.zeros(shape) if len(shape) == 1 else jax.random.normal(one, shape) / np.sqrt(shape[0])
        for one, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1).mean()


def _squared(found: jax.Array, y: jax.Array) -> jax.Array:
    return ((found - y) ** 2).mean()


_LOSSES = {"classes": _cross_entropy, "numbers": _squared}


def _mlp(data: tuple[Data, Data], widths: tuple[int, ...], act: Callable[..., Any], outputs: int, kind: str) -> Problem:
    train, valid = data
    sizes = (train[0].shape[1], *widths, outputs)
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(len(sizes) - 1):
        shapes |= {f"w{k}": (sizes[k], sizes[k + 1]), f"b{k}": (sizes[k + 1],)}

    def loss(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        for k in range(len(sizes) - 1):
            x = x @ p[f"w{k}"] + p[f"b{k}"]
            x = act(x) if k < len(sizes) - 2 else x
        return _LOSSES[kind](x, y)

    return Problem(lambda key: _weights(key, **shapes), loss, train, valid)


def _cell(kind: str, p: Params, h: jax.Array, x: jax.Array) -> jax.Array:
    """One step of a recurrent net; the LSTM keeps its cell in the second half of h."""
    z = jnp.concatenate([x, h[: p["u"].shape[0]] if kind == "lstm" else h]) @ p["w"] + p["bw"]
    if kind in ("tanh", "relu"):
        return (jnp.tanh if kind == "tanh" else jax.nn.relu)(z)
    if kind == "gru":
        n = h.shape[0]
        r, u = jax.nn.sigmoid(z[:n]), jax.nn.sigmoid(z[n : 2 * n])
        return u * h + (1 - u) * jnp.tanh(z[2 * n :] + r * (h @ p["u"]))
    n = h.shape[0] // 2
    i, f, o, g = z[:n], z[n : 2 * n], z[2 * n : 3 * n], z[3 * n :]
    c = jax.nn.sigmoid(f + 1.0) * h[n:] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


_GATES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4}


def _recurrent(
    data: tuple[Data, Data],
    kind: str,
    width: int,
    outputs: int,
    embed: int = 0,
    *,
    mean: bool = False,
    per: bool = False,
) -> Problem:
    """Of rows of numbers, or of words when `embed`; reads the last state, the mean of all, or predicts per step."""
    train, valid = data
    inputs = embed or train[0].shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        "w": (inputs + width, _GATES[kind] * width),
        "bw": (_GATES[kind] * width,),
        "u": (width, width),
        "out": (width, outputs),
        "b": (outputs,),
    }
    if embed:
        shapes["e"] = (int(train[0].max()) + 1, embed)

    def loss(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        def read(row: jax.Array) -> jax.Array:
            steps = p["e"][row] * np.sqrt(p["e"].shape[0]) if embed else row
            start = jnp.zeros(width * (2 if kind == "lstm" else 1))
            _, states = jax.lax.scan(lambda h, s: ((n := _cell(kind, p, h, s)), n), start, steps)
            states = states[:, :width]
            return states if per else states.mean(axis=0) if mean else states[-1]

        return _cross_entropy(jax.vmap(read)(x) @ p["out"] + p["b"], y)

    return Problem(lambda key: _weights(key, **shapes), loss, train, valid)


def _words(seed: int, length: int, rows: int = 3000, vocabulary: int = 40) -> tuple[Data, Data]:
    """Two kinds of sentences that differ in how often some words follow others."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    own, shared = rng.dirichlet(np.full(vocabulary, 0.4), (2, vocabulary)), rng.dirichlet(np.full(vocabulary, 1.0))
    tables = (own + shared) / 2
    totals = tables.cumsum(axis=2)
    x = np.empty((rows, length), dtype=np.int32)
    x[:, 0] = rng.integers(0, vocabulary, rows)
    for t in range(1, length):
        x[:, t] = np.minimum((totals[y, x[:, t - 1]] < rng.random((rows, 1))).sum(axis=1), vocabulary - 1)
    cut = rows // 4
    return (x[cut:], y[cut:]), (x[:cut], y[:cut])


def _next_words(seed: int) -> tuple[Data, Data]:
    (x, _), (vx, _) = _words(seed, 11)
    return (x[:, :-1], x[:, 1:]), (vx[:, :-1], vx[:, 1:])


def _digits() -> tuple[Data, Data]:
    return _split(*datasets.load_digits(return_X_y=True))


def _digit_rows() -> tuple[Data, Data]:
    (x, y), (vx, vy) = _digits()
    return (x.reshape(-1, 8, 8), y), (vx.reshape(-1, 8, 8), vy)


def _blobs() -> tuple[Data, Data]:
    return _split(*datasets.make_classification(4000, 30, n_informative=12, n_classes=5, flip_y=0.05, random_state=3))


def _friedman() -> tuple[Data, Data]:
    x, y = datasets.make_friedman1(4000, 20, noise=1.0, random_state=1)
    return _split(x, ((y - y.mean()) / y.std())[:, None].astype(np.float32))


def _parity() -> tuple[Data, Data]:
    x = np.random.default_rng(4).integers(0, 2, (6000, 12)) * 2.0 - 1
    return _split(x, (x[:, :3].prod(axis=1) > 0).astype(np.int64))


def _diabetes() -> tuple[Data, Data]:
    x, y = datasets.load_diabetes(return_X_y=True)
    return _split(x, ((y - y.mean()) / y.std())[:, None].astype(np.float32))


def _same(data: tuple[Data, Data]) -> tuple[Data, Data]:
    (x, _), (vx, _) = data
    return (x, x), (vx, vx)


def _factors() -> Problem:
    """A matrix of which a part is seen, by two factors."""
    rng = np.random.default_rng(7)
    whole = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 50)) / 2 + 0.3 * rng.normal(size=(60, 50))
    at = np.stack(np.meshgrid(np.arange(60), np.arange(50), indexing="ij"), axis=-1).reshape(-1, 2)
    order = rng.permutation(len(at))
    x, y = at[order].astype(np.int32), whole.reshape(-1)[order].astype(np.float32)
    return Problem(
        lambda key: {name: 0.3 * w for name, w in _weights(key, left=(60, 8), right=(50, 8)).items()},
        lambda p, x, y: _squared(8 * (p["left"][x[:, 0]] * p["right"][x[:, 1]]).sum(axis=-1), y),
        (x[:2200], y[:2200]),
        (x[2200:], y[2200:]),
    )


def _valley() -> Problem:
    """A noisy quadratic whose directions differ by four decades, with a floor."""
    rng = np.random.default_rng(8)
    scale = np.logspace(-4, 0, 40).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0].astype(np.float32)
    noise = rng.normal(size=(4000, 40)).astype(np.float32)
    none = np.zeros(4000, dtype=np.int32)

    def loss(p: Params, x: jax.Array, _: jax.Array) -> jax.Array:
        off = (p["x"][:, 0] + 3.0) @ turn + 0.3 * x
        return (scale * off**2).sum(axis=-1).mean()

    return Problem(lambda key: _weights(key, x=(40, 1)), loss, (noise[:3000], none[:3000]), (noise[3000:], none[3000:]))


def _cnn() -> Problem:
    train, valid = _digits()
    shapes = {"c": (9, 8), "bc": (8,), "w": (8 * 9, 24), "bw": (24,), "out": (24, 10), "b": (10,)}

    def loss(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        image = x.reshape(-1, 8, 8)
        patches = jnp.stack([image[:, i : i + 6, j : j + 6] for i in range(3) for j in range(3)], axis=-1)
        maps = jax.nn.relu(patches @ p["c"] + p["bc"]).reshape(-1, 3, 2, 3, 2, 8).max(axis=(2, 4))
        return _cross_entropy(jax.nn.relu(maps.reshape(-1, 72) @ p["w"] + p["bw"]) @ p["out"] + p["b"], y)

    return Problem(lambda key: _weights(key, **shapes), loss, train, valid)


_relu, _tanh = jax.nn.relu, jnp.tanh
TASKS: Mapping[str, Callable[[], Problem]] = {
    "taskset_own_softmax_digits": lambda: _mlp(_digits(), (), _relu, 10, "classes"),
    "taskset_own_mlp_digits": lambda: _mlp(_digits(), (32, 32), _relu, 10, "classes"),
    "taskset_own_deep_tanh_digits": lambda: _mlp(_digits(), (24,) * 5, _tanh, 10, "classes"),
    "taskset_own_deep_sigmoid_digits": lambda: _mlp(_digits(), (24,) * 3, jax.nn.sigmoid, 10, "classes"),
    "taskset_own_autoencoder_digits": lambda: _mlp(_same(_digits()), (32, 8, 32), _relu, 64, "numbers"),
    "taskset_own_cnn_digits": _cnn,
    "taskset_own_gru_digits": lambda: _recurrent(_digit_rows(), "gru", 16, 10),
    "taskset_own_mlp_blobs": lambda: _mlp(_blobs(), (48,), _relu, 5, "classes"),
    "taskset_own_mlp_friedman": lambda: _mlp(_friedman(), (32, 16), _relu, 1, "numbers"),
    "taskset_own_mlp_diabetes": lambda: _mlp(_diabetes(), (32, 32), _relu, 1, "numbers"),
    "taskset_own_parity": lambda: _mlp(_parity(), (24,), _relu, 2, "classes"),
    "taskset_own_lstm_words_mean": lambda: _recurrent(_words(1, 12), "lstm", 16, 2, 16, mean=True),
    "taskset_own_lstm_words_last": lambda: _recurrent(_words(2, 12), "lstm", 16, 2, 16),
    "taskset_own_gru_next_word": lambda: _recurrent(_next_words(3), "gru", 16, 40, 12, per=True),
    "taskset_own_rnn_words_last": lambda: _recurrent(_words(4, 12), "tanh", 20, 2, 12),
    "taskset_own_factors": _factors,
    "taskset_own_valley": _valley,
    "algoperf_own_late_mlp_blobs": lambda: _mlp(_blobs(), (32, 32), _relu, 5, "classes"),
    "algoperf_own_late_gru_next_word": lambda: _recurrent(_next_words(5), "gru", 16, 40, 12, per=True),
    "algoperf_own_late_cnn_digits": _cnn,
    "algoperf_own_late_autoencoder": lambda: _mlp(_same(_digits()), (48, 8, 48), _tanh, 64, "numbers"),
}


def _drawn(ranges: Mapping[str, tuple[float, float]], count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {name: np.exp(rng.uniform(*np.log(ends), count)) for name, ends in ranges.items()}
    return found | {name: 1 - found[name] for name in ("beta1", "beta2")}


def curves(problem: Problem, config: dict[str, np.ndarray], steps: int, batch: int) -> np.ndarray:
    """Validation loss of each configuration at each report, the first before any training, shape (C, 51).

    It is taken on other 256 rows at each report, so it is as noisy as TaskSet's.
    """
    count = len(config["l1"])
    c = {name: jnp.asarray(values, jnp.float32) for name, values in config.items()}
    (x, y), (vx, vy) = ((jnp.asarray(a) for a in part) for part in (problem.train, problem.valid))
    every = steps // (REPORTS - 1)

    def penalised(p: Params, own: Params, xb: jax.Array, yb: jax.Array) -> jax.Array:
        penalty = sum(own["l2"] * (w**2).sum() + own["l1"] * jnp.abs(w).sum() for w in p.values())
        return problem.loss(p, xb, yb) + penalty

    def step(own: Params, carry: Carry, rows: jax.Array) -> tuple[Carry, None]:
        p, m, v, t = carry
        g = jax.grad(penalised)(p, own, x[rows], y[rows])
        m = jax.tree.map(lambda a, b: own["beta1"] * a + (1 - own["beta1"]) * b, m, g)
        v = jax.tree.map(lambda a, b: own["beta2"] * a + (1 - own["beta2"]) * b * b, v, g)
        at = t * _STEPS_OF_TASKSET / steps
        rate = own["learning_rate"] * jnp.maximum(0.0, 1 - own["linear_decay"] * at)
        rate = rate * jnp.exp(-own["exponential_decay"] * at)
        one, two = 1 - own["beta1"] ** (t + 1), 1 - own["beta2"] ** (t + 1)
        p = jax.tree.map(lambda w, a, b: w - rate * (a / one) / (jnp.sqrt(b / two + 1e-10) + own["epsilon"]), p, m, v)
        return (p, m, v, t + 1), None

    def on(carry: Carry, key: jax.Array) -> Carry:
        rows = jax.random.randint(key, (every, batch), 0, len(x))
        done: Carry = jax.vmap(lambda own, one: jax.lax.scan(partial(step, own), one, rows)[0])(c, carry)
        return done

    def loss(carry: Carry, key: jax.Array) -> jax.Array:
        rows = jax.random.randint(key, (256,), 0, len(vx))
        return jax.vmap(lambda p: problem.loss(p, vx[rows], vy[rows]))(carry[0])

    p = jax.vmap(problem.start)(jax.random.split(jax.random.key(0), count))
    none = jax.tree.map(jnp.zeros_like, p)
    carry = p, none, none, jnp.zeros(count)
    trained, measured = jax.jit(on), jax.jit(loss)
    found = [np.asarray(measured(carry, jax.random.key(10_000)))]
    for k in range(1, REPORTS):
        carry = trained(carry, jax.random.key(k))
        found.append(np.asarray(measured(carry, jax.random.key(10_000 + k))))
    return np.stack(found, axis=1)


def stored(name: str, values: np.ndarray, config: dict[str, np.ndarray]) -> dict[str, Any]:
    """The arrays of one file: see the README. A training that diverged ends before its first value that is infinite."""
    finite = np.isfinite(values).cumprod(axis=1).astype(bool)
    length = np.maximum(1, finite.sum(axis=1)).astype(np.int32)
    kept = np.arange(values.shape[1])[None, :] < length[:, None]
    reports = np.arange(1.0, REPORTS + 1)[None, :]
    # A training of AlgoPerf does not cost the same as the next.
    pace = np.exp(np.random.default_rng(1).normal(0, 0.25, len(values)))[:, None] if "late" in name else 1.0
    cost = np.broadcast_to(reports * pace * (_WHOLE_S / REPORTS if "late" in name else 1.0), values.shape)
    arrays = {"value": np.nan_to_num(values)[kept].astype(np.float32), "cost": cost[kept].astype(np.float32)}
    arrays |= {"length": length, "lower": np.bool_(1)}
    if "late" not in name:
        arrays |= {"params": np.stack(list(config.values()), axis=1), "param_names": np.array(list(config))}
    return arrays


@click.command()
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--configurations", default=256, show_default=True, type=click.IntRange(2))
@click.option("--steps", default=1000, show_default=True, type=click.IntRange(50), help="Of a training.")
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1))
@click.option("--only", default="", help="Tasks whose names hold this.")
def main(out: Path, configurations: int, steps: int, batch: int, only: str) -> None:
    """Train all tasks and write one file each; those that are there stay."""
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, build) in enumerate(TASKS.items()):
        path = out / f"{name}.npz"
        if only not in name or path.exists():
            continue
        config = _drawn(_LATE if "late" in name else RANGES, configurations, number)
        arrays = stored(name, curves(build(), config, steps, batch), config)
        np.savez_compressed(path, **arrays)
        Console().print(f"{name}: best {arrays['value'].min():.4g}, {int((arrays['length'] < REPORTS).sum())} diverged")


if __name__ == "__main__":
    main()
