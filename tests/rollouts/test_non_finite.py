"""A row whose numbers are not finite ends with an error, and leaves nothing behind that another row could read."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from scope_jax.rollouts.sampling import Sampling, sample
from scope_jax.rollouts.types import NonFiniteError, Request
from tests.rollouts import world
from tests.rollouts.test_online import Asked, online
from tests.rollouts.world import ENGINE, bits, mixed, request

BAD = 255  # the token whose row of the table is not finite


def few_pages() -> Any:
    return world.make_paged(pages=1 + 3 * 4, slots=2)


def few_columns() -> Any:
    return world.make_engine(dataclasses.replace(ENGINE, slots=2))


def spoiled(params: Any, value: float, table: str = "embed") -> Any:
    return params | {table: jax.tree.map(lambda x: x.at[BAD].set(value), params[table])}


def honest(rollouts: Any) -> list[tuple[Request, Any]]:
    """Requests that neither read nor sample the bad token, and what they get."""
    asked = [one for one in mixed(30) if BAD not in one.prompt_ids]
    pairs = zip(asked, rollouts.run(asked), strict=True)
    return [(one, bits(completion)) for one, completion in pairs if BAD not in completion.ids_T]


@pytest.mark.parametrize(
    ("value", "make"),
    [
        (float("nan"), few_pages),
        (float("inf"), few_columns),
        pytest.param(float("inf"), few_pages, marks=pytest.mark.slow),
        pytest.param(float("nan"), few_columns, marks=pytest.mark.slow),
    ],
)
def test_only_the_request_ends_and_its_memory_serves_others(params, make, value):
    engine = make()
    good = honest(world.make_rollouts(engine, params))
    assert len(good) > 10
    bad = [request([BAD] * (150 - n), key=n, temperature=n % 2, max_tokens=9) for n in range(4)]
    late = request([*b"it begins well", BAD], max_tokens=9)
    with online(engine, spoiled(params, value), ahead=True) as running:
        asked = [Asked(running, one) for one in (*bad, *(one for one, _ in good), late)]
        for one in (*asked[: len(bad)], asked[-1]):
            done = one.done()
            assert isinstance(done.error, NonFiniteError) and done.completion is None
            assert "the decode program gave no finite logits for token" in str(done.error)
        assert [bits(one.completion()) for one in asked[len(bad) : -1]] == [expected for _, expected in good]
        assert running.failure is None and running.running == running.waiting == 0


@pytest.mark.parametrize("make", [few_pages, few_columns])
def test_offline_the_call_ends(params, make):
    rollouts = world.make_rollouts(make(), spoiled(params, float("nan")))
    with pytest.raises(NonFiniteError, match="the decode program gave no finite logits for token 3 of an episode"):
        rollouts.run([request("good", key=1), request([1, 2, BAD], key=2)])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"tempered_logprobs": True}])
def test_one_bad_logit_is_enough(engine, params, value, how):
    rollouts = world.make_rollouts(engine, spoiled(params, value, "head"))
    with pytest.raises(NonFiniteError):
        rollouts.run([request("a question", **({"temperature": 0.7} | how))])


@pytest.mark.parametrize("make", [few_pages, few_columns])
def test_a_value_beyond_the_largest_number_ends_the_request(params, make):
    """Keys are finite here: the norm of a head bounds them."""
    huge = params["layers"] | {"v_D_Kh": params["layers"]["v_D_Kh"] * 3e38}
    with online(make(), params | {"layers": huge}) as running:
        assert isinstance(Asked(running, request("a question")).done().error, NonFiniteError)


def test_the_log_prob_tells_whether_the_logits_are_finite():
    """In every case but one: a token of minus infinity beside finite ones has probability 0, and is not drawn."""
    rows = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    rows[1, 7] = np.nan
    rows[2, 49] = np.inf
    rows[3, :] = -np.inf
    rows[4, 7] = -np.inf
    rows[5, [3, 4]] = np.inf, -np.inf
    for temperature, top_k, top_p, tempered in [
        (0, 0, 1, False),
        (1, 0, 1, False),
        (0.5, 9, 0.9, True),
        (2, 0, 0.5, False),
    ]:
        full = lambda value, kind: np.full(6, value, kind)  # noqa: E731
        how = Sampling(
            np.arange(12, dtype=np.uint32).reshape(6, 2),
            full(temperature, np.float32),
            full(top_k, np.int32),
            full(top_p, np.float32),
            full(tempered, bool),
        )
        _, logprob_S = jax.jit(sample)(rows, how, full(3, np.int32))
        assert np.isfinite(logprob_S).tolist() == [True, False, False, False, True, False]


def test_what_the_device_samples_after_a_stop_string_fails_nothing(params, rollouts):
    """Whether the device went on to the end of a dispatch must decide nothing."""
    for key in range(50):
        (plain,) = rollouts.run([one := request("tell me", key=key, max_tokens=30)])
        if len(plain.ids_T) > 4 and plain.ids_T[1] < 128 and plain.ids_T[1] not in plain.ids_T[:1]:
            break
    stop = chr(plain.ids_T[1])
    bad = int(plain.ids_T[1])
    table = {"embed": jax.tree.map(lambda x: x.at[bad].set(np.nan), params["embed"])}
    cut = dataclasses.replace(one, params=dataclasses.replace(one.params, stop=(stop,)))
    for steps in (1, 4, 8):
        engine = world.make_engine(dataclasses.replace(ENGINE, decode_steps=steps, slots=2))
        (completion,) = world.make_rollouts(engine, params | table, ahead=steps == 4).run([cut])
        assert completion.finish_reason == "stop" and completion.ids_T.tolist() == plain.ids_T[:2].tolist()
