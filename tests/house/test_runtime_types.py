"""The tests' import hook checks types and shapes at each call, in modules and in data classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scope_jax.config.learner import AdvantageCard
from scope_jax.learner import advantages
from scope_jax.models.decoder.config import Attention
from scope_jax.text import parsing


def test_types_are_checked() -> None:
    with pytest.raises(Exception, match=r"spans\(\) parameter"):
        parsing.spans(3, "think")  # type: ignore[arg-type]
    wrong: Any = "two"
    with pytest.raises(Exception, match="num_heads"):
        Attention(wrong, 1, 4, None, None, "none")


def test_shapes_are_checked() -> None:
    with pytest.raises(Exception, match="Type-check error"):
        advantages.compute(np.zeros(2), ["a", "a"], np.ones(3), AdvantageCard())
