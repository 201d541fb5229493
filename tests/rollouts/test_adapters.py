"""Policies as adapters in one engine: each has the same bits alone and among others; publishing moves it alone."""

import dataclasses

import jax
import numpy as np
import pytest

from scope_jax.models.decoder.adapter import Adapter, combined, declare_factors
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.types import RolloutError
from scope_jax.sharding.spec import init_params
from tests.rollouts.world import (
    CFG,
    ENGINE,
    ByteTokenizer,
    bits,
    make_engine,
    make_paged,
    make_rollouts,
    mixed,
    request,
    trainer_logprobs,
)

ADAPTER = Adapter(rank=4, alpha=8.0, targets=("q_proj", "o_proj", "down_proj"))  # quick to compile
POLICIES = ("challenger", "solver")
ADAPTED = dataclasses.replace(ENGINE, max_length=128, adapter=ADAPTER, policies=POLICIES)
SIZES = {"challenger": 0.2, "solver": 0.3}


def factors_of(policy: str, cfg=CFG, adapter: Adapter = ADAPTER):
    """Factors neither of which is zero."""
    factors = init_params(declare_factors(cfg, adapter), jax.random.key(len(policy)))
    rng = np.random.default_rng(len(policy))
    return jax.tree.map(lambda x: x + SIZES[policy] * rng.normal(size=x.shape).astype(np.float32), factors)


@pytest.fixture(scope="module", params=[pytest.param("dense", marks=pytest.mark.slow), "paged"])
def adapted(request, params):
    """Rollouts with both adapters over the base."""
    rollouts = make_rollouts(make_engine(ADAPTED) if request.param == "dense" else make_paged(ADAPTED), params)
    for policy in POLICIES:
        rollouts.load_adapter(policy, factors_of(policy))
    return rollouts


def asked(policy: str | None, count: int = 5) -> list:
    return [dataclasses.replace(one, policy=policy) for one in mixed(count)]


@pytest.fixture(scope="module")
def alone(adapted):
    """Completions by policy, each policy's in a call of its own."""
    found = {}
    for policy in (*POLICIES, None):
        adapted.clear()
        found[policy] = [bits(c) for c in adapted.run(asked(policy))]
    return found


def test_three_policies_in_one_batch_give_the_bits_of_each_alone(adapted, alone):
    policies = (*POLICIES, None)
    together = [one for group in zip(*(asked(policy) for policy in policies), strict=True) for one in group]
    adapted.clear()
    completions = adapted.run(together)
    for place, policy in enumerate(policies):
        assert [bits(c) for c in completions[place::3]] == alone[policy], policy
    assert len({alone[policy][0] for policy in policies}) == 3


def test_log_probs_are_those_of_the_learner(adapted, params):
    """Of both adapters and the base, which is the model without any."""
    policies = (*POLICIES, None)
    requests = [dataclasses.replace(request(f"a prompt of {policy}", key=1), policy=policy) for policy in policies]
    for completion, policy in zip(adapted.run(requests), policies, strict=True):
        whole = params if policy is None else combined(CFG, params, factors_of(policy), ADAPTER.scale)
        wanted = trainer_logprobs(whole, completion, length=ADAPTED.max_length)
        np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)


def test_publishing_moves_the_adapter_alone(adapted, alone):
    """The base's buffers stay where they are, and the other policies' bits with them."""
    before = adapted._params
    adapted.load_adapter("solver", jax.tree.map(lambda x: x * 1.5, factors_of("solver")))
    try:
        kept = [name for name in before if name != "layers"]
        assert all(before[name] is adapted._params[name] for name in kept)
        for old, new in zip(before["layers"], adapted._params["layers"], strict=True):
            assert all(
                getattr(old[name], "weight", old[name]) is getattr(new[name], "weight", new[name]) for name in old
            )
        assert [bits(c) for c in adapted.run(asked("challenger"))] == alone["challenger"]
        assert [bits(c) for c in adapted.run(asked("solver"))] != alone["solver"]
    finally:
        adapted.load_adapter("solver", factors_of("solver"))
    assert [bits(c) for c in adapted.run(asked("solver"))] == alone["solver"]


def test_a_prompt_that_is_kept_belongs_to_its_policy(adapted):
    """Two policies with one prompt, one after the other: the second does not continue the first's keys and values."""
    rollouts = adapted
    rollouts.clear()
    prompt = list(range(100))

    def ask(policy: str) -> list:
        return [dataclasses.replace(request(prompt, key=3), policy=policy)]

    rollouts.run(ask("challenger"))
    after = rollouts.run(ask("solver"))
    assert rollouts._state.computed_tokens == rollouts._state.prompt_tokens == 2 * 99
    rollouts.clear()
    assert [bits(c) for c in rollouts.run(ask("solver"))] == [bits(c) for c in after]
    rollouts.run(ask("solver"))
    assert rollouts._state.computed_tokens == 99  # found this time


def test_bad_policies_are_named(adapted):
    with pytest.raises(ValueError, match="no adapter of the policy 'judge'; it has: challenger, solver"):
        adapted.run([dataclasses.replace(request("x"), policy="judge")])
    group = [dataclasses.replace(request("x", group="g"), policy=policy) for policy in POLICIES]
    with pytest.raises(ValueError, match="another policy than the rest of its group 'g'"):
        adapted.run(group)
    with pytest.raises(ValueError, match="belong together"):
        dataclasses.replace(ENGINE, policies=POLICIES)
    empty = LocalRollouts(adapted.engine, ByteTokenizer(), seed=0, threads=1, ahead=False)
    with pytest.raises(RolloutError, match="call load_params before load_adapter"):
        empty.load_adapter("solver", factors_of("solver"))
