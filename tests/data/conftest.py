"""Corpora that a test reads are cached in the test's folder, not in the user's."""

from __future__ import annotations

from pathlib import Path

import datasets
import datasets.config
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
