"""Measured stage times of eight models on 1 to 32 GPUs, as the traces of the Muri simulator state them.

Source: Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022, and its public traces
(github.com/Rivendile/Muri). The facts are restated here; per GPU count: iteration, loading data (storage and CPU),
computing on the GPU, synchronising over the network, in milliseconds per iteration.
"""

from __future__ import annotations

from sched_policy.model import StageProfile

GPU_COUNTS = (1, 2, 4, 8, 16, 32)


_MS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "vgg16": (
        (107, 117, 68, 0),
        (191, 114, 72, 40),
        (201, 82, 72, 67),
        (214, 82, 75, 66),
        (332, 83, 68, 110),
        (336, 87, 67, 131),
    ),
    "vgg19": (
        (109, 114, 80, 0),
        (205, 115, 83, 41),
        (212, 84, 85, 73),
        (226, 82, 88, 60),
        (302, 102, 78, 123),
        (356, 89, 79, 141),
    ),
    "resnet18": (
        (779, 711, 110, 0),
        (881, 687, 110, 95),
        (921, 723, 113, 73),
        (1010, 784, 117, 77),
        (1055, 736, 108, 93),
        (1059, 712, 111, 93),
    ),
    "shufflenet_v2_x1_0": (
        (798, 706, 59, 0),
        (850, 747, 58, 18),
        (886, 703, 62, 17),
        (957, 769, 57, 10),
        (1006, 776, 57, 21),
        (1019, 799, 56, 24),
    ),
    "bert": (
        (178, 0.5, 160, 0),
        (195, 0.5, 163, 18),
        (190, 0.5, 163, 18),
        (192, 0.5, 167, 59),
        (244, 0.5, 166, 86),
        (260, 0.5, 166, 133),
    ),
    "gpt2": (
        (426, 0.6, 410, 0),
        (464, 0.7, 416, 40),
        (433, 0.6, 413, 20),
        (437, 0.6, 419, 49),
        (491, 0.6, 415, 137),
        (514, 0.7, 414, 216),
    ),
    "a2c": (
        (517, 514, 14, 0),
        (525, 504, 14, 0.5),
        (533, 502, 10, 0.3),
        (555, 502, 14, 0.4),
        (567, 514, 14, 1.2),
        (585, 507, 14, 2),
    ),
    "dqn": (
        (490, 446, 8, 0),
        (495, 441, 8, 0.6),
        (505, 440, 8, 0.4),
        (509, 435, 8, 0.5),
        (525, 438, 8, 1.2),
        (546, 437, 8, 1.6),
    ),
}

MODELS = tuple(_MS)


def profile(model: str, gpus: int = 1) -> StageProfile:
    """The stage times of a model of `MODELS` on a GPU count of `GPU_COUNTS`. Raises `KeyError` or `ValueError`."""
    iteration, io, gpu, net = _MS[model][GPU_COUNTS.index(gpus)]
    return StageProfile(iteration / 1000, io / 1000, gpu / 1000, net / 1000)
