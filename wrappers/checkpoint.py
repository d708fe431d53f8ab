"""Moved to `explsched`; this name works for one more release."""

from __future__ import annotations

import warnings

from explsched.atomic_file import atomic_write as atomic_write
from explsched.checkpoint import CheckpointSignal as CheckpointSignal

warnings.warn("wrappers.checkpoint has moved: use `import explsched`", FutureWarning, stacklevel=2)
