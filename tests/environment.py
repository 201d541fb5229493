"""The environment of tests, to be set before any package is imported."""

from __future__ import annotations

import os
from pathlib import Path

from tests.flags import FAST

ROOT = Path(__file__).resolve().parents[1]


def set_defaults() -> None:
    """Sets what the environment does not set already."""
    # Programs that took long to compile are kept between runs and shared with the processes that tests start.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Tests compare with tolerances, or programs compiled in the same way.
    os.environ.setdefault("XLA_FLAGS", FAST)
    # Two workers share two cores: BLAS threads of numpy and scikit-learn on top would only fight.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # No test may reach for a hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
