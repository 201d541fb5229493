"""How the slots of invalid questions are filled, over several steps with hand-computed numbers (App. B.1, B.3)."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import Config, LearnerSection, LossCard, OptimizerSection
from scope_jax.data.keys import drawn
from scope_jax.games import GAMES, ssp
from scope_jax.games.ssp.options import SSPSection
from scope_jax.games.ssp.roles import DUMMY
from scope_jax.learner import advantages
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.game import Memory
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.games.harness import (
    ITEMS,
    Plan,
    ScriptedTools,
    card,
    episodes_of,
    good_proposal,
    play_step,
    question_about,
    world,
)
from tests.learner.conftest import TINY, weights_of
from tests.shapes import like

BAD = ["no question today"]


def plan_with(*good: int) -> Plan:
    """Only the answers `good` get a valid question."""
    return Plan(proposals={f"{item}": BAD for item in range(4) if item not in good})


def step(cfg: Config, memory: Memory, number: int, *good: int) -> tuple[list[Episode], Memory, Metrics]:
    return play_step(GAMES["ssp"], cfg, world(plan_with(*good)), memory, ITEMS, number)


def problems(episodes: list[Episode]) -> list[tuple[str, str]]:
    """(origin, gold answer) of each slot that was played, in order."""
    return [(e.text["origin"], e.text["answer"]) for e in episodes_of(episodes, "solver")[::2]]


def proposer_rewards(episodes: list[Episode]) -> list[float]:
    return [e.reward for e in episodes_of(episodes, "proposer") if e.trained]


def answers(memory: Memory) -> list[str]:
    return [entry["answers"][0] for entry in memory["pool"]]


@pytest.fixture(scope="module")
def learner() -> Learner:
    """A small model for the harness's tokenizer of characters."""
    model = like(TINY, num_layers=1, vocab_size=128, max_positions=1024)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    optimizer = OptimizerSection(warmup_steps=1, max_grad_norm=1e9, weight_decay=0.0)
    section = LearnerSection(buckets=(1024,), micro_batch_rows=2, remat="none")
    return Learner(model, mesh, optimizer, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)


def gradient(learner: Learner, episodes: list[Episode], loss: LossCard) -> dict[str, np.ndarray]:
    """The gradient of one update, from Adam's first moment: mu = (1 − beta1) · g; policy ≠ reference."""
    rated, _ = advantages.assign(episodes, loss)
    params = weights_of(learner.model)
    state = learner.init_state(params).replace(ref_params=jax.tree.map(lambda w: 1.1 * w, params))
    after, _ = learner.update(state, learner.pack(rated, loss), loss)
    leaves = jax.tree.leaves_with_path(after.opt_state[0].mu)
    return {jax.tree_util.keystr(path): np.asarray(mu) / 0.1 for path, mu in leaves}


def max_difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one) / max(
        float(np.abs(x).max()) for x in other.values()
    )


@pytest.mark.slow  # learner/test_idle.py compares gradients with and without such episodes
def test_dummy_padding_gives_no_gradient(learner: Learner):
    """Neither from the policy term nor from KL or entropy; but dummies count in the divisor, 1/B of Eq. (4)."""
    cfg = card(fill="dummy", solver={"loss": {"kl_coef": 0.5, "entropy_coef": 0.5, "mini_batches": 1}})
    loss = cfg.options(SSPSection).solver.loss
    solver = episodes_of(step(cfg, {"pool": []}, 0, 1)[0], "solver")
    real = [e for e in solver if e.text["origin"] == "fresh"]
    padded, alone = gradient(learner, solver, loss), gradient(learner, real, loss)
    assert max_difference(padded, {name: grad * 2 / 8 for name, grad in alone.items()}) < 1e-6
    assert max(np.abs(grad).max() for grad in padded.values()) > 1e-3
    dummies = [e for e in solver if e.text["origin"] == "dummy"]
    assert len(dummies) == 6 and learner.pack(dummies, loss) == []
    # with two mini-batches, the second has only dummies: no step is taken
    rated, _ = advantages.assign(solver, loss)
    assert len(learner.pack(rated, loss.model_copy(update={"mini_batches": 2}))) == 1


def test_dummies_do_not_enter_the_baseline():
    cfg = card(fill="dummy", solver={"loss": {"advantage": "batch-mean"}})
    rated, _ = advantages.assign(
        episodes_of(step(cfg, {"pool": []}, 0, 1)[0], "solver"), cfg.options(SSPSection).solver.loss
    )
    assert [e.advantage for e in rated] == [None, None, 0.5, -0.5, None, None, None, None]


def test_the_proposer_earns_nothing_for_dummies():
    episodes, memory, metrics = step(card(fill="dummy"), {"pool": []}, 0, 1)
    assert problems(episodes) == [("dummy", None), ("fresh", "Rome"), ("dummy", None), ("dummy", None)]
    rewards = {group: [e.reward for e in episodes if e.group == group] for group in ("solver/0", "solver/1")}
    assert rewards == {"solver/0": [0.0, 0.0], "solver/1": [1.0, 0.0]}
    assert proposer_rewards(episodes) == [0.0, 0.5, 0.0, 0.0]
    assert memory == {"pool": []} and metrics["slots/dummy"] == 0.75
    skipped, _, metrics = step(card(fill="dummy", dummy="skip"), {"pool": []}, 0, 1)
    assert problems(skipped) == [("fresh", "Rome")] and metrics["slots/dummy"] == 0.75


def test_a_dummy_is_never_right_and_never_judged():
    plan = Plan(proposals={"0": BAD}, solutions={DUMMY: [["<answer>none</answer>"]] * 2})
    tools = world(plan, judge_reply=lambda message: "Correct")
    table = {"url": "http://127.0.0.1:9", "model": "m"}
    episodes, _, metrics = play_step(
        GAMES["ssp"], card(grader="judge", judge_table=table), tools, {"pool": []}, ITEMS[:1], 0
    )
    assert [e.reward for e in episodes_of(episodes, "solver")] == [0.0, 0.0]
    assert tools.judged == [] and metrics["judge/asked"] == 0.0


def test_replay_fills_from_earlier_steps_without_replacement():
    cfg = card(fill="replay")
    episodes, memory, metrics = step(cfg, ssp.GAME.start(cfg), 0, 0, 1)
    assert problems(episodes) == [("fresh", "Paris"), ("fresh", "Rome"), ("dummy", None), ("dummy", None)]
    assert memory["pool"] == [
        {"question": question_about(0), "answers": ["Paris"]},
        {"question": question_about(1), "answers": ["Rome", "Roma", "the Eternal City"]},
    ]
    assert metrics["pool/size"] == 2.0

    episodes, memory, metrics = step(cfg, memory, 1, 2)  # three places, two entries: both, then the dummy
    origins = problems(episodes)
    assert origins[2] == ("fresh", "Cairo") and origins[3] == ("dummy", None)
    assert sorted(origins[:2]) == [("replay", "Paris"), ("replay", "Rome")]
    assert proposer_rewards(episodes) == [0.0, 0.0, 0.5, 0.0]  # the proposer earns nothing for a replayed question
    assert answers(memory) == ["Paris", "Rome", "Cairo"]
    assert (metrics["slots/fresh"], metrics["slots/replay"], metrics["slots/dummy"]) == (0.25, 0.5, 0.25)
    assert metrics["solver/reward"] == 0.5  # replayed questions count, the dummy does not

    episodes, memory, _ = step(cfg, memory, 2)  # four places, three entries, no new question
    origins = problems(episodes)
    assert sorted(origins[:3]) == [("replay", "Cairo"), ("replay", "Paris"), ("replay", "Rome")]
    assert origins[3] == ("dummy", None)
    assert answers(memory) == ["Paris", "Rome", "Cairo"]  # a reused question is not stored again


def test_a_replayed_question_is_graded_with_its_own_answers():
    cfg = card(fill="replay", solver={"samples": 1})
    replayed = {"question": question_about(1), "answers": ["Rome", "Roma"]}
    plan = Plan(proposals={"0": BAD}, solutions={question_about(1): [["<answer>roma</answer>"]]})
    episodes, _, _ = play_step(GAMES["ssp"], cfg, world(plan), {"pool": [replayed]}, ITEMS[:1], 5)
    (solver,) = episodes_of(episodes, "solver")
    assert (solver.reward, solver.text["question"], solver.text["slot"]) == (1.0, question_about(1), 0)
    (proposer,) = episodes_of(episodes, "proposer")
    assert proposer.reward == 0.0 and proposer.text["answer"] == "Paris" and dict(proposer.parts) == {"valid": 0.0}


def test_in_the_released_code_a_reused_question_is_stored_again():
    cfg = card(fill="replay", replay_keep_reused=True)
    _, memory, _ = step(cfg, ssp.GAME.start(cfg), 0, 0)
    _, memory, _ = step(cfg, memory, 1)
    assert answers(memory) == ["Paris", "Paris"]
    _, memory, _ = step(cfg, memory, 2)
    assert answers(memory) == ["Paris"] * 4


def test_periodic_reset_empties_the_pool_after_every_third_step():
    cfg = card(fill="replay-reset", replay_reset_every=3)
    memory, sizes, replayed = ssp.GAME.start(cfg), [], []
    for number in range(7):
        episodes, memory, _ = step(cfg, memory, number, 0)
        sizes.append(len(memory["pool"]))
        replayed.append(sum(origin == "replay" for origin, _ in problems(episodes)))
    assert sizes == [1, 2, 0, 1, 2, 0, 1]
    assert replayed == [0, 1, 2, 0, 1, 2, 0]


def test_replay_without_reset_keeps_everything():
    cfg = card(fill="replay", replay_reset_every=1)
    memory = ssp.GAME.start(cfg)
    for number in range(4):
        _, memory, _ = step(cfg, memory, number, 0, 3)
    assert answers(memory) == ["Paris", "Vienna"] * 4


def test_a_run_resumed_from_json_continues_identically():
    cfg = card(fill="replay-reset", replay_reset_every=4)
    straight, resumed = ssp.GAME.start(cfg), ssp.GAME.start(cfg)
    for number in range(6):
        good = [item for item in range(4) if (number + item) % 3 == 0]
        one, straight, first = step(cfg, straight, number, *good)
        two, resumed, second = step(cfg, json.loads(json.dumps(resumed)), number, *good)
        assert problems(one) == problems(two) and first == second
    assert straight == resumed and straight["pool"]


def test_draws_depend_on_seed_and_step_and_are_fair():
    entries = [{"question": f"q{index}", "answers": ["a"]} for index in range(10)]
    counts = np.zeros(10)
    for seed in range(400):
        taken = drawn(entries, 3, np.random.default_rng(seed))
        names = [int(entry["question"][1:]) for entry in taken]
        assert len(set(names)) == 3
        counts[names] += 1
    assert counts.min() > 80 and counts.max() < 160  # 120 expected of each
    assert drawn([], 3, np.random.default_rng(0)) == []
    big = {"pool": entries}
    choices = {
        tuple(e.text["question"] for e in episodes_of(step(card(fill="replay", seed=seed), big, number)[0], "solver"))
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(choices) == 4


def test_dynamic_resampling_asks_again_only_where_it_failed():
    plan = plan_with(0, 1)
    plan.proposals |= {
        "slot 2 attempt 1": good_proposal(2),
        "slot 3 attempt 1": BAD,
        "slot 3 attempt 2": good_proposal(3),
    }
    tools = world(plan)
    cfg = card(fill="resample", max_resamples=5, invalid_reward=-0.1)
    episodes, memory, metrics = play_step(GAMES["ssp"], cfg, tools, ssp.GAME.start(cfg), ITEMS, 0)
    asked = [name for role, name, _ in tools.asked if role == "proposer"]
    assert asked == ["0", "1", "2", "3", "slot 2 attempt 1", "slot 3 attempt 1", "slot 3 attempt 2"]
    assert problems(episodes) == [("fresh", row["answers"][0]) for row in ITEMS]
    proposer = episodes_of(episodes, "proposer")
    assert [(e.text["slot"], e.text["attempt"], e.trained, e.reward) for e in proposer] == [
        (0, 0, True, 0.5),
        (1, 0, True, 0.5),
        (2, 0, False, -0.1),
        (3, 0, False, -0.1),
        (2, 1, True, 0.5),
        (3, 1, False, -0.1),
        (3, 2, True, 0.5),
    ]
    assert memory == {"pool": []}
    assert metrics["proposer/episodes"] == 7.0 and metrics["proposer/valid"] == pytest.approx(4 / 7)
    assert metrics["proposer/rejected_no_question"] == pytest.approx(3 / 7)
    assert metrics["proposer/reward"] == 0.5  # mean over the four slots


def test_dynamic_resampling_gives_up():
    plan = plan_with(0)
    plan.proposals |= {f"slot {slot} attempt {attempt}": BAD for slot in range(4) for attempt in (1, 2)}
    cfg = card(fill="resample", max_resamples=2)
    episodes, _, metrics = play_step(GAMES["ssp"], cfg, world(plan), ssp.GAME.start(cfg), ITEMS, 0)
    assert problems(episodes) == [("fresh", "Paris"), ("dummy", None), ("dummy", None), ("dummy", None)]
    assert metrics["proposer/episodes"] == 10.0  # 4 + 3 + 3
    assert proposer_rewards(episodes) == [0.5, 0.0, 0.0, 0.0]


def test_punitive_reward_and_intermediate_difficulty():
    episodes, _, metrics = step(card(fill="dummy", invalid_reward=-0.1), {"pool": []}, 0, 0)
    assert proposer_rewards(episodes) == [0.5, -0.1, -0.1, -0.1]
    assert metrics["proposer/reward"] == pytest.approx((0.5 - 0.3) / 4)
    four = [["<answer>Paris</answer>"], *[["<answer>London</answer>"]] * 3]
    none = [["<answer>London</answer>"]] * 4
    plan = Plan(solutions={question_about(0): four, question_about(1): none})
    options: dict[str, Any] = {"proposer_reward": "intermediate", "solver": {"samples": 4}}
    episodes, _, _ = play_step(GAMES["ssp"], card(**options), world(plan), {"pool": []}, ITEMS[:2], 0)
    assert proposer_rewards(episodes) == [pytest.approx(0.75), 0.0]  # 4 · ¼ · ¾; no attempt solved the other
    shifted: dict[str, Any] = options | {"intermediate_left": 0.25, "intermediate_right": 0.75}
    episodes, _, _ = play_step(GAMES["ssp"], card(**shifted), world(plan), {"pool": []}, ITEMS[:2], 0)
    assert proposer_rewards(episodes) == [pytest.approx(1.0), 0.0]


def test_several_questions_for_one_answer_form_one_group():
    plan = Plan(sampled={("0", 1): BAD, ("1", 2): BAD})
    tools: ScriptedTools = world(plan)
    cfg = card(fill="dummy", proposer={"samples": 3, "loss": {"advantage": "group-zscore"}})
    episodes, _, metrics = play_step(GAMES["ssp"], cfg, tools, {"pool": []}, ITEMS[:2], 0)
    assert [entry for entry in tools.asked if entry[0] == "proposer"] == [("proposer", "0", 3), ("proposer", "1", 3)]
    proposer = episodes_of(episodes, "proposer")
    assert [e.group for e in proposer] == ["proposer/0"] * 3 + ["proposer/1"] * 3
    assert [e.reward for e in proposer] == [0.5, 0.0, 0.5, 0.5, 0.5, 0.0]
    assert sorted({e.group for e in episodes_of(episodes, "solver")}) == [f"solver/{slot}" for slot in range(6)]
    assert metrics["slots/fresh"] == pytest.approx(4 / 6)
    assert ssp.GAME.updates(cfg)[1].card.aggregation == "constant"  # a partial table keeps Eq. (5)'s other settings
