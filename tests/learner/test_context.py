"""An update whose rows are divided over devices equals that of one device; where tokens and slots are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scope_jax.config import LearnerSection
from scope_jax.learner import batching
from scope_jax.models.decoder.context import token_order
from tests.eight import on_eight_devices

ROOT = Path(__file__).parents[2]


def measured(which: str) -> dict[str, dict[str, float]]:
    return on_eight_devices("tests.learner.eight_context", which)


def assert_equal_to_one_device(facts: dict[str, dict[str, float]]) -> None:
    for name, one in facts.items():
        assert one["grads"] < 1e-5, name
        assert one["params"] < 1e-5, name
        assert one["metrics"] < 1e-4, name
        assert one["share"] == 1, name  # weights are divided over fsdp, context and tensor


@pytest.mark.slow
def test_an_update_equals_that_of_one_device():
    facts = measured("quick")
    assert len(facts) == 1
    assert_equal_to_one_device(facts)


@pytest.mark.slow
def test_every_combination_of_axes_and_family_equals_one_device():
    facts = measured("all")
    assert len(facts) == 16 + 6 + 6 + 2  # the latter with sequence parallelism
    assert_equal_to_one_device(facts)


@pytest.mark.slow
def test_states_equal_those_of_one_device():
    """In float64: in float32 a Gated DeltaNet adds up rounding to more than the tolerance of the others."""
    command = [sys.executable, "-m", "tests.learner.eight_states"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert len(facts) == 2
    for name, one in facts.items():
        assert one["grads"] < 1e-11 and one["params"] < 1e-11 and one["metrics"] < 1e-11, (name, one)
        assert one["share"] == 1, name


@pytest.mark.parametrize("context", [2, 4])
def test_slots_are_where_their_hidden_states_are(make, context):
    section = LearnerSection(buckets=(64,), micro_batch_rows=2, logprob_chunk=8)
    episodes = make[2](12, 3)
    whole, split = batching.pack(episodes, section, 2), batching.pack(episodes, section, 2, True, context)
    assert np.array_equal(split.ids_MBT, whole.ids_MBT[..., token_order(64, context)])
    assert np.array_equal(split.positions_MBT, whole.positions_MBT[..., token_order(64, context)])
    shards, own = 2 * context, 64 // context  # each shard has one row here
    slots = split.index_MN.reshape(-1, shards, split.index_MN.shape[1] // shards)
    ids = split.ids_MBT.reshape(len(slots), shards, own)
    mask, source = split.mask_MN.reshape(slots.shape), split.source_MN.reshape(slots.shape)
    assert slots.max() < own and mask.any(axis=(0, 2)).sum() > context

    def tokens(ids, index, mask, source):
        """The token that predicts each sampled one, by the number of the sampled one."""
        return {s: i[t] for i, ts, ms, ss in zip(ids, index, mask, source, strict=True)
                for t, m, s in zip(ts, ms, ss, strict=True) if m}  # fmt: skip

    theirs = tokens(
        whole.ids_MBT.reshape(-1, 64),
        *(x.reshape(x.shape[0] * 2, -1) for x in (whole.index_MN, whole.mask_MN, whole.source_MN)),
    )
    ours = tokens(ids.reshape(-1, own), *(x.reshape(-1, slots.shape[2]) for x in (slots, mask, source)))
    assert ours == theirs
    values = split.targets_MN.astype(np.float32)
    assert np.array_equal(batching.unpack(split, values), batching.unpack(whole, whole.targets_MN.astype(np.float32)))
    assert split.first_MN.sum() == whole.first_MN.sum() and split.length_MN.sum() == whole.length_MN.sum()
