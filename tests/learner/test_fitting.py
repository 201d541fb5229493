"""Rows of a micro-batch and recomputation that a card leaves open."""

import pytest

from scope_jax.config import LearnerSection
from scope_jax.learner.fitting import fitted, layer_bytes
from scope_jax.sharding.mesh import AXES
from tests.learner.conftest import TINY
from tests.shapes import like

# benchmarks/learner.py: 4 · 256 + 12 heads of 64 + 3 · 768 values of a token in a layer
MODEL = like(TINY, num_layers=4, width=256, num_heads=4, num_kv_heads=2, head_dim=64, ffn_width=768)


def mesh(platform: str, data: int = 1, fsdp: int = 1, context: int = 1) -> tuple[str, dict[str, int], int]:
    """Platform, mesh and bytes of a number."""
    return platform, dict(zip(AXES, (data, fsdp, 1, context, 1), strict=True)), 4


def test_a_layer_by_hand():
    assert layer_bytes(MODEL, 192, 1, 4) == [192 * (1024 + 768 + 2304) * 4] * 4
    assert layer_bytes(MODEL, 192, 2, 4) == [192 * (1024 + 384 + 1152) * 4] * 4
    experts = like(MODEL, num_experts=8, experts_per_token=2)
    assert layer_bytes(experts, 1, 1, 2) == [(1024 + 768 + 2 * 2304) * 2] * 4


@pytest.mark.parametrize(
    ("where", "buckets", "rows", "remat"),
    [
        (mesh("cpu"), (192,), 2, "none"),  # 12 MiB a row
        (mesh("cpu", data=2, fsdp=2), (192,), 8, "none"),  # two on each
        (mesh("cpu", context=2), (384,), 2, "none"),  # half of a row on each
        (mesh("cpu"), (2,), 64, "none"),
        (mesh("cpu"), (192, 1024), 8, "full"),  # 64 MiB
        (mesh("tpu"), (192,), 8, "full"),
        (mesh("gpu", data=2), (192,), 8, "full"),
    ],
)
def test_rows_fit_the_cache_of_a_cpu(where, buckets, rows, remat):
    section = fitted(LearnerSection(buckets=buckets), MODEL, *where)
    assert (section.micro_batch_rows, section.remat) == (rows, remat)


def test_what_a_card_says_stays():
    section = LearnerSection(buckets=(192,), micro_batch_rows=3, remat="qkv")
    assert fitted(section, MODEL, *mesh("cpu")) == section
    half = fitted(LearnerSection(buckets=(192,), remat="full"), MODEL, *mesh("cpu"))
    assert (half.micro_batch_rows, half.remat) == (2, "full")
