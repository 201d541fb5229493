"""The engine driven through JetStream's interface samples the same tokens as our own loop."""

import logging
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from scope_jax.rollouts.jetstream import JetStreamEngine, engine_api
from tests.rollouts.world import EOS, PAD, ByteTokenizer, request, sampling


@pytest.fixture(scope="module")
def adapter(engine):
    return JetStreamEngine(engine, ByteTokenizer(), PAD, sampling(temperature=0.0))


def drive(adapter, params, prefixes):
    """JetStream's loop: insert at any slot, generate until every request has ended; (tokens, log-probs) of each."""
    assert isinstance(adapter, engine_api.Engine)
    weights = adapter.load_params(params)
    state = adapter.init_decode_state()
    slots = {}
    for number, make in enumerate(prefixes):
        slot = (3 * number + 1) % adapter.max_concurrent_decodes
        state = adapter.insert(make(weights), state, slot=slot)
        slots[slot] = number
    tokens, logprobs = [[] for _ in prefixes], [[] for _ in prefixes]
    for _ in range(30):
        state, result = adapter.generate(weights, state)
        result.copy_to_host_async()
        result = result.convert_to_numpy()
        for slot, number in slots.items():
            data = result.get_result_at_slot(slot)
            valid = data.valid[0].astype(bool)
            tokens[number] += data.tokens[0][valid].tolist()
            logprobs[number] += result.logprobs(slot)[valid].tolist()  # pyright: ignore[reportAttributeAccessIssue]: our subclass
            assert data.lengths[0] == len(tokens[number])
        if not result.data[:, slice(*result.valid_idx)].any():
            return tokens, logprobs
    raise AssertionError("the engine did not come to an end")


def test_prefill_insert_generate_equal_our_loop(adapter, params, rollouts):
    asked = [
        request(f"prompt {i} " * (i + 1), key=i, temperature=(1.0, 0.0)[i % 2], max_tokens=9 + i) for i in range(5)
    ]
    expected = rollouts.run(asked)

    def prefix(one):
        padded = np.full(96, PAD, np.int32)
        padded[: len(one.prompt_ids)] = one.prompt_ids
        return lambda weights: adapter.prefill(
            params=weights,
            padded_tokens=jax.numpy.asarray(padded),
            true_length=len(one.prompt_ids),
            sampling=one.params,
            key=one.key,
        )

    tokens, logprobs = drive(adapter, params, [prefix(one) for one in asked])
    assert tokens == [c.ids_T.tolist() for c in expected]
    assert logprobs == [c.logprobs_T.tolist() for c in expected]


def test_samples_of_one_prompt(adapter, params):
    weights = adapter.load_params(params)
    prefix = adapter.prefill_multisampling(
        params=weights,
        padded_tokens=np.arange(40),
        true_length=20,
        sampling=sampling(max_tokens=12, stop_ids=()),
        num_samples=3,
    )
    state = adapter.bulk_insert(prefix, adapter.init_decode_state(), [0, 4, 7])
    said = {0: [], 4: [], 7: []}
    for _ in range(3):
        state, result = adapter.generate(weights, state)
        for slot in said:
            said[slot] += result.convert_to_numpy().get_result_at_slot(slot).tokens[0].tolist()
    assert all(len(ids) == 12 for ids in said.values())
    assert len({tuple(ids) for ids in said.values()}) == 3


def test_properties_of_the_interface(adapter, engine):
    assert adapter.max_concurrent_decodes == 8 and adapter.samples_per_slot == 1
    assert adapter.max_prefill_length == 159 and adapter.mesh is engine.mesh
    assert adapter.colocated_cpus is None and not adapter.use_chunked_prefill
    assert adapter.get_prefix_destination_sharding() is None
    tokenizer = adapter.build_tokenizer(adapter.get_tokenizer())
    assert tokenizer.decode(tokenizer.encode("byte")[0]) == "byte"
    assert tokenizer.stop_tokens == {EOS} and tokenizer.eos_id == EOS and tokenizer.pad_id == PAD
    with pytest.raises(ValueError, match="existing_prefix"):
        adapter.prefill(params=None, existing_prefix=object(), padded_tokens=[1], true_length=1)


def test_importing_jetstream_has_no_side_effects():
    program = (
        "import logging, sys; before = list(logging.getLogger().handlers)\n"
        "import scope_jax.rollouts.jetstream\n"
        "assert 'seqio' not in sys.modules and 'tensorflow' not in sys.modules\n"
        "assert logging.getLogger().level == logging.WARNING and logging.getLogger().handlers == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "seqio" not in sys.modules and logging.getLogger().level != logging.DEBUG
