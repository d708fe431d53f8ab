"""Moved to `explsched`; this name works for one more release."""

from __future__ import annotations

import warnings

from explsched.progress import event as event
from explsched.progress import report as report

warnings.warn("wrappers.progress has moved: use `import explsched`", FutureWarning, stacklevel=2)
