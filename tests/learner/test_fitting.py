"""Rows of a micro-batch and recomputation that a card leaves open."""

import math

import jax
import pytest

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.learner.fitting import ROUGH, Room, fitted, layer_bytes, temporaries
from scope_jax.learner.layout import Layout
from scope_jax.models.decoder.transformer import declare
from scope_jax.plan.hardware import Absent
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import abstract_params
from tests.learner.conftest import TINY
from tests.shapes import like

# benchmarks/learner.py: 4 · 256 + 12 heads of 64 + 3 · 768 values of a token in a layer
MODEL = like(TINY, num_layers=4, width=256, num_heads=4, num_kv_heads=2, head_dim=64, ffn_width=768)
SHAPES = abstract_params(declare(MODEL))


def layout(platform: str, data: int = 1, fsdp: int = 1, context: int = 1) -> Layout:
    """On devices that need not be there, in float32."""
    places = range(data * fsdp * context)
    devices = [Absent(number, platform, platform, coords=(number, 0, 0)) for number in places]
    mesh = make_mesh(MeshConfig(data, fsdp, 1, context), devices)
    return Layout(MODEL, mesh, OptimizerSection(), param_dtype="float32", compute_dtype="float32", adapter=None)


def test_a_layer_by_hand():
    assert layer_bytes(MODEL, 192, 1, 4) == [192 * (1024 + 768 + 2304) * 4] * 4
    assert layer_bytes(MODEL, 192, 2, 4) == [192 * (1024 + 384 + 1152) * 4] * 4
    experts = like(MODEL, num_experts=8, experts_per_token=2)
    assert layer_bytes(experts, 1, 1, 2) == [(1024 + 768 + 2 * 2304) * 2] * 4


@pytest.mark.parametrize(
    ("where", "buckets", "rows", "remat"),
    [
        (("cpu",), (192,), 2, "none"),  # 12 MiB a row
        (("cpu", 2, 2), (192,), 8, "none"),  # two on each
        (("cpu", 1, 1, 2), (384,), 2, "none"),  # half of a row on each
        (("cpu",), (2,), 64, "none"),
        (("cpu",), (192, 1024), 8, "full"),  # 64 MiB
        (("tpu",), (192,), 8, "full"),
        (("gpu", 2), (192,), 8, "full"),
    ],
)
def test_rows_fit_the_cache_of_a_cpu(where, buckets, rows, remat):
    """Without a known memory nothing is kept beyond it."""
    section = fitted(LearnerSection(buckets=buckets), layout(*where), None)
    assert (section.micro_batch_rows, section.remat) == (rows, remat)


def test_what_a_card_says_stays():
    section = LearnerSection(buckets=(192,), micro_batch_rows=3, remat="qkv", logprob_chunk=64)
    plenty = Room(1e12, 1, True)
    assert fitted(section, layout("cpu"), plenty) == section == fitted(section, layout("gpu"), plenty)
    half = fitted(LearnerSection(buckets=(192,), remat="full"), layout("cpu"), None)
    assert (half.micro_batch_rows, half.remat) == (2, "full")
    every = LearnerSection(buckets=(192,), micro_batch_rows=0)
    assert fitted(every, layout("gpu"), plenty).remat == "full"  # how many rows there will be is not known


STEPS = {
    "cpu": [(2, "none"), (2, "dots"), (2, "attention"), (2, "full")],
    "gpu": [(8, "dots"), (8, "attention"), (8, "full")],
    "tpu": [(8, "dots"), (8, "attention"), (8, "full")],
}


@pytest.mark.parametrize(("platform", "steps"), STEPS.items())
def test_as_much_is_kept_as_has_room(platform, steps):
    """With just enough memory for a choice it is taken, with a byte less the next one that needs less. States of two
    policies, a reference, and something else are there, too."""
    here, weights = layout(platform), sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(SHAPES))
    others = 4 * weights * (2 * 3 + 1) + 2 * 4 + 1000  # a state is the weights, two moments and the number of steps
    sizes = []
    for rows, remat in steps:
        section = LearnerSection(buckets=(4096,), micro_batch_rows=rows, remat=remat)
        sizes.append(ROUGH * sum(temporaries(here, section, 4096).values()))
    assert sizes == sorted(sizes, reverse=True)
    for choice, following, size in zip(steps, steps[1:], sizes, strict=False):
        section = LearnerSection(buckets=(192, 4096))
        enough, less = (fitted(section, here, Room(size + others + more, 2, True, 1000.0)) for more in (1, -1))
        assert (enough.micro_batch_rows, enough.remat) == choice
        assert (less.micro_batch_rows, less.remat) == following


def test_blocks_of_the_vocabulary_are_large_on_a_gpu_with_room():
    """Behind what is kept of the layers; with a byte less they stay small."""
    section = LearnerSection(buckets=(4096,))
    held = Room(0.0, 1, True).left(layout("gpu"))
    large = section.model_copy(update={"micro_batch_rows": 8, "remat": "dots", "logprob_chunk": 1024})
    size = ROUGH * sum(temporaries(layout("gpu"), large, 4096).values()) - held
    chunks = [fitted(section, layout("gpu"), Room(size + more, 1, True)).logprob_chunk for more in (1, -1)]
    assert chunks == [1024, 128]
    assert fitted(section, layout("gpu"), None).logprob_chunk == 128  # its memory is not known
    plenty = Room(1e12, 1, True)
    assert fitted(section, layout("tpu"), plenty).logprob_chunk == 128
    assert fitted(section, layout("cpu"), plenty).logprob_chunk == 128


def test_what_is_kept_by_hand():
    """Of a token in a layer beside its input: 4 heads of 64; also 8 with keys and values; also two vectors of 256 and
    gate and up of 768."""
    here = layout("gpu")

    def kept(remat):
        section = LearnerSection(buckets=(4096,), micro_batch_rows=1, remat=remat)
        return temporaries(here, section, 4096)["activations"]

    full, attention, qkv, dots = map(kept, ("full", "attention", "qkv", "dots"))
    values = 4 * 4096 * 4  # of a token, in all layers
    assert attention - full == values * 256
    assert qkv - attention == values * (256 + 2 * 128)
    assert dots - qkv == values * (2 * 256 + 2 * 768)
