"""The losses of a played step, under each card's settings, against the equations of its paper in torch: value and
gradient.

The games are SSP (Eq. (4) and (5)) and SCOPE (Eq. (2) and (3)). Scripted policies play; a small model gives the
log-probs by a plain forward pass: current, before the update, and of the reference. The torch side starts from rewards,
reads no card, and differentiates with respect to log π. Where a paper leaves something open, the choice is that of
docs/losses.md: token ratios with clip and dual clip, the k3 estimator of the KL with the ratio, one divisor per
mini-batch.

Loss and gradient with respect to log π agree to 1e-6. For one card of each game, the loss of the whole optimiser step
agrees to 1e-6 too, and torch's gradient, backpropagated to the weights through that plain forward pass, agrees with the
step's to 1e-5: the rounding of two backward passes in float32 is a few 1e-6 here. (SCOPE's card is the one for Qwen3,
where an episode is several rows.)
"""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.config.base import prompts_of
from scope_jax.games import GAMES, load_card, scope, ssp
from scope_jax.learner import advantages, batching, losses, splitting
from scope_jax.learner.learner import Learner, Scores
from scope_jax.models.decoder import transformer
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.games import harness, scope_world
from tests.games.harness import play_step
from tests.learner.conftest import TINY, weights_of
from tests.shapes import like

torch = pytest.importorskip("torch")

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MODEL = like(TINY, num_layers=1, vocab_size=256, max_positions=768)
WIDTH, ROWS = 768, 24  # of the plain forward pass
OPTIMIZER = OptimizerSection(learning_rate=1e-3, warmup_steps=1, max_grad_norm=1e9, weight_decay=0.0)
SECTION = LearnerSection(buckets=(WIDTH,), micro_batch_rows=4, remat="none", logprob_chunk=256)
TOLERANCE, ROUNDING = 1e-6, 1e-5


# ------------------------------------------------------------------------------------------------- the papers, in torch
@dataclass
class Rollout:
    """What an equation needs of one episode: its reward and the log-probs of its sampled tokens."""

    reward: float
    now: Any  # torch.Tensor, of its sampled tokens
    old: Any
    ref: Any


def surrogate(rollout, advantage, low, high):
    """min(r·Â, clip(r)·Â) of each token, and 3·Â at least where Â < 0; at r = 1 its gradient is Â ∇log π."""
    ratio = torch.exp(rollout.now - rollout.old)
    inner = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return inner.clamp(min=3 * advantage) if advantage < 0 else inner


def divergence(rollout):
    """KL[π ‖ π_ref] at each token x ~ π_old: r · (e^(−δ) − 1 + δ), whose gradient is r·δ ∇log π, in expectation ∇KL."""
    delta = rollout.now - rollout.ref
    return torch.exp(rollout.now - rollout.old) * (torch.exp(-delta) - 1 + delta)


def ssp_eq_4(questions):
    """1/B Σ_i [1/n Σ_j 1/|ρ_i^j| Σ_t log π · Â_i^j − β KL]; questions: B lists of n rollouts, a dummy's is empty."""
    terms = []
    for rollouts in questions:
        rewards = [rollout.reward for rollout in rollouts]
        for rollout in rollouts:
            token = surrogate(rollout, rollout.reward - np.mean(rewards), 0.2, 0.285) - 0.01 * divergence(rollout)
            terms.append(token / len(token) / len(rollouts) / len(questions))
    return terms


def ssp_eq_5(questions):
    """1/B Σ_i R(τ_i) Σ_t log π: no KL term, no baseline, no division by a length."""
    return [surrogate(one, one.reward, 0.2, 0.285) / len(questions) for (one,) in questions]


def ssp_released_proposer(questions):
    """The form of the released code, which Atlas uses: mean over the tokens of an episode, and a KL term."""
    tokens = [surrogate(one, one.reward, 0.2, 0.285) - 0.01 * divergence(one) for (one,) in questions]
    return [token / len(token) / len(questions) for token in tokens]


def scope_eq_3(groups):
    """J(θ) with A of Eq. (2), the mean taken over tokens."""
    terms = []
    for rollouts in groups:
        rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
        advantage_G = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()
        terms += [surrogate(r, a, 0.2, 0.2) - 1e-3 * divergence(r) for r, a in zip(rollouts, advantage_G, strict=True)]
    return [token / sum(map(len, terms)) for token in terms]


# ------------------------------------------------------------------------------------------------------ played episodes
def short_prompts(tmp_path, game, **texts):
    """The game's own prompts, except for those of the policies, which are shortened to save time."""
    folder = tmp_path / game
    shutil.copytree(prompts_of(game), folder)
    for role, text in texts.items():
        (folder / f"{role}.txt").write_text(text)
    return f'{game}.prompts="{folder}"'


def played_ssp(card, tmp_path):
    """(config, episodes) of one step: four answers, of which the third finds no question."""
    prompts = short_prompts(tmp_path, "ssp", proposer="About {answer}: {search}", solver="{question} {search}")
    # A letter is one token here, so the limits are raised.
    room = [f"ssp.{role}.sampling.max_tokens=1000" for role in ("proposer", "solver")]
    room += ["rollout.max_length=10000", "learner.buckets=[10000]"]
    cfg = load_card(CONFIGS / card, [prompts, *room, 'ssp.fill="dummy"'])
    right = [item["answers"][0] for item in harness.ITEMS]
    solutions = {
        harness.question_about(item): [
            [f"<search>{harness.RIVERS[item]}</search>", f"<answer>{right[item]}</answer>"]
            if sample <= item
            else [f"<think>{'hm ' * sample}</think> <answer>London</answer>"]
            for sample in range(5)
        ]
        for item in range(4)
    }
    plan = harness.Plan(proposals={"2": ["<think>nothing comes to mind</think>"]}, solutions=solutions)
    episodes, _, _ = play_step(GAMES["ssp"], cfg, harness.world(plan), ssp.GAME.start(cfg), harness.ITEMS, 0)
    return cfg, episodes


def played_scope(card, tmp_path):
    """(config, episodes) of a challenger's step, and of a solver's on the tasks made in between."""
    prompts = short_prompts(tmp_path, "scope", challenger="{document} {search}", solver="{search} Task: {task}")
    sizes = {"steps_per_iteration": 1, "challenger_batch": 4, "solver_batch": 2, "generation_batch": 4}
    sizes |= {"target_tasks": 2, "n_train": 2, "n_filter": 2, "challenger.samples": 4, "solver.samples": 4}
    speaking = ("challenger.sampling", "solver.sampling", "estimate", "creation", "gates", "rubric_writer", "grader")
    sizes |= {f"{name}.max_tokens": 1000 for name in speaking}  # a letter is one token here
    cfg = load_card(CONFIGS / card, [prompts, *(f"scope.{name}={size}" for name, size in sizes.items())])
    names = {("xml", "chat"): "qwen2.5", ("hermes", "chat-trimmed"): "qwen3", ("function", "chat"): "olmo3"}
    protocol = names.get((cfg.model.dialect, cfg.model.turns), "raw")
    look = scope_world.searching_turn("Rhine", protocol)
    drafts = [
        lambda title: (look, scope_world.task(f"Tell of {title}.")),
        lambda title: (look, scope_world.task(f"A VAGUE {title}.")),
        lambda title: (f"I pass on {title}.",),
        lambda title: (scope_world.task(f"Tell of old {title}."),),
    ]
    words = ("alpha beta gamma delta", "nothing", "alpha beta", "delta gamma alpha", "beta")
    plan = scope_world.Plan(
        drafts={(d["title"], n): drafts[n % 4](d["title"]) for d in scope_world.DOCUMENTS for n in range(8)},
        attempts={("Tell", n): (look, scope_world.answer(words[n % 5]))[n % 3 == 1 :] for n in range(8)},
    )
    memory, episodes = scope.GAME.start(cfg), []
    for step, items in enumerate((scope_world.DOCUMENTS, scope_world.DOCUMENTS, [])):
        played, memory, _ = play_step(GAMES["scope"], cfg, scope_world.world(plan, protocol), memory, items, step)
        episodes += [e for e in played if e.trained]
    return cfg, episodes


# ---------------------------------------------------------------------------------------------------------------- ours
@pytest.fixture(scope="module")
def learner():
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    return Learner(MODEL, mesh, OPTIMIZER, SECTION, param_dtype=jnp.float32, compute_dtype=jnp.float32)


@pytest.fixture(scope="module")
def weights():
    """Three similar sets of weights: the policy, the policy before the update, the reference."""
    params, rng = weights_of(MODEL), np.random.default_rng(0)

    def perturbed(weight):
        return weight * (1 + 0.1 * rng.normal(size=weight.shape).astype(np.float32))

    return [jax.device_get(params), *(jax.device_get(jax.tree.map(perturbed, params)) for _ in range(2))]


def plain(params, ids_RT):
    """log π of each token but the first given those before it: no packing, no micro-batches, no chunks."""
    rows, length = ids_RT.shape
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    options = {"shards": LOCAL, "remat": "none", "compute_dtype": jnp.float32}
    hidden_RTD = transformer.hidden(MODEL, params, ids_RT, positions, jnp.full_like(ids_RT, length), **options)
    logp_RTV = jax.nn.log_softmax(hidden_RTD[:, :-1] @ params["embed"]["table_VD"].T)
    return jnp.take_along_axis(logp_RTV, ids_RT[:, 1:, None], -1)[..., 0]


forward = jax.jit(plain)
pulled_back = jax.jit(jax.grad(lambda params, ids_RT, weight_RT: (weight_RT * plain(params, ids_RT)).sum()))


def rows_of(datums):
    """(ids, which tokens but the first are sampled), one row for each datum."""
    ids_RT, sampled_RT = np.zeros((ROWS, WIDTH), np.int32), np.zeros((ROWS, WIDTH), bool)
    for row, datum in enumerate(datums):
        ids_RT[row, : len(datum.ids_T)], sampled_RT[row, : len(datum.ids_T)] = datum.ids_T, datum.sampled_T
    return ids_RT, sampled_RT[:, 1:]


def laid_out(batch, values_N):
    """Values of the sampled tokens, given in datum order, in the batch's layout."""
    source_MN = np.asarray(batch.source_MN)
    return jnp.asarray(np.where(source_MN >= 0, values_N[np.maximum(source_MN, 0)], np.float32(0)))


def max_difference(one, other):
    """Largest difference, relative to the largest entry."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    return max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs) / max(np.abs(b).max() for _, b in pairs)


def halves(groups, count):
    """The groups in `count` mini-batches, in order."""
    return [groups[len(groups) * part // count : len(groups) * (part + 1) // count] for part in range(count)]


@partial(jax.jit, static_argnames="card")
def by_logprob(logp_N, tokens, counts, card):
    """(loss, ∂loss/∂log π)."""
    divisor = losses.denominator(card, *counts)
    return jax.value_and_grad(lambda x_N: losses.loss_parts(x_N, tokens, card).numerator / divisor)(logp_N)


def check(learner, weights, episodes, update, equation, mini_batches, whole):
    """One role's update: loss and gradient of each mini-batch against the equation. whole: the optimiser step of the
    last mini-batch as well.

    Returns the fractions of tokens whose ratio was out of range. Terms of both signs cancel in a loss, after a z-score
    almost completely, so the tolerance is relative to the sum of their absolute values.
    """
    rated, _ = advantages.assign(episodes, update.card)
    batches = learner.pack(rated, update.card)
    names = list(dict.fromkeys(e.group for e in episodes))
    clipped = []
    for batch, part in zip(batches, halves(names, mini_batches), strict=True):
        members = [[e for e in episodes if e.group == name and not e.padding] for name in part]
        ids_RT, sampled_RT = rows_of([datum for group in members for e in group for datum in e.datums])
        logprobs = [np.asarray(forward(params, ids_RT))[sampled_RT] for params in weights]
        leaf, old_N, ref_N = (torch.tensor(logprob_N).double() for logprob_N in logprobs)
        terms = torch.cat(equation(rollouts_of(members, leaf.requires_grad_(), old_N, ref_N)))
        (-terms.sum()).backward()
        loss, size, slope_N = -terms.sum().item(), terms.abs().sum().item(), leaf.grad.numpy()
        ratio_N = (leaf - old_N).detach().exp()
        clipped.append(((ratio_N > 1.285) | (ratio_N < 0.8)).double().mean().item())

        # Ours leaves out the tokens of episodes without a term; the equation sums over all.
        termed = {id(e.datums): splitting.has_term(e, update.card) for e in rated}
        sizes = [(termed[id(e.datums)], batching.sampled_tokens(e)) for group in members for e in group]
        in_row_N = np.repeat(*map(np.array, zip(*sizes, strict=True)))
        assert not slope_N[~in_row_N].any()
        now_MN, old_MN, ref_MN = (laid_out(batch, logprob_N[in_row_N]) for logprob_N in logprobs)
        tokens = jax.tree.map(jnp.ravel, learner.jitted._tokens(batch, scores := Scores(old_MN, ref_MN)))
        counts = tokens.mask_N.sum() + batch.padding_tokens, tokens.first_N.sum() + batch.padding_sequences
        ours, ours_N = by_logprob(now_MN.ravel(), tokens, counts, update.card)
        assert abs(float(ours) - loss) <= TOLERANCE * size
        assert max_difference(batching.unpack(batch, ours_N.reshape(now_MN.shape)), slope_N[in_row_N]) <= TOLERANCE
    if whole:
        now, _, ref = weights
        state = learner.init_state(now).replace(ref_params=jax.tree.map(jnp.asarray, ref))
        after, metrics = learner.step(state, batch, scores, update.card)
        assert abs(float(metrics["loss"]) - loss) <= TOLERANCE * size
        moment = jax.tree.map(lambda mu: np.asarray(mu) / 0.1, after.opt_state[0].mu)  # Adam's: (1 − beta1) · g
        weight_RT = np.zeros(sampled_RT.shape, np.float32)
        weight_RT[sampled_RT] = slope_N
        assert max_difference(moment, pulled_back(now, ids_RT, weight_RT)) <= ROUNDING
    return clipped


def rollouts_of(groups, *logprobs_N):
    """The groups' episodes, each with its part of the concatenated log-probs."""
    place, made = 0, []
    for group in groups:
        made.append([])
        for episode in group:
            end = place + advantages.sampled_tokens(episode)
            made[-1].append(Rollout(episode.reward, *(x[place:end] for x in logprobs_N)))
            place = end
    assert place == len(logprobs_N[0])
    return made


@pytest.mark.parametrize(
    ("card", "proposers", "whole"),
    [
        ("ssp/qwen2.5-7b.toml", ssp_eq_5, False),
        pytest.param("ssp/atlas.toml", ssp_released_proposer, False, marks=pytest.mark.slow),
        pytest.param("ssp/qwen2.5-7b.toml", ssp_eq_5, True, marks=pytest.mark.slow),
    ],
)
def test_ssp(learner, weights, tmp_path, card, proposers, whole):
    """Table 4: B = 256 in mini-batches of 128, here four questions in two of two; n = 5; β = 0.01."""
    cfg, episodes = played_ssp(card, tmp_path)
    solver, proposer = (harness.episodes_of(episodes, role) for role in ("solver", "proposer"))
    assert [e.reward for e in proposer] == [0.8, 0.6, 0.0, pytest.approx(0.2)]
    assert len(solver) == 20 and sum(e.padding for e in solver) == 5
    for update, own, equation in zip(ssp.GAME.updates(cfg), (solver, proposer), (ssp_eq_4, proposers), strict=True):
        assert update.name == own[0].role
        assert min(check(learner, weights, own, update, equation, 2, whole)) > 0.05


@pytest.mark.parametrize(
    "card", ["atlas", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2.5-7b", "qwen3-8b", "olmo3-7b"))]
)
def test_scope(learner, weights, tmp_path, card):
    """Table 9: β = 0.001, a batch is one mini-batch."""
    cfg, episodes = played_scope(f"scope/{card}.toml", tmp_path)
    for update in scope.GAME.updates(cfg):
        own = harness.episodes_of(episodes, update.name)
        groups = {e.group: [other.reward for other in own if other.group == e.group] for e in own}
        assert len(groups) >= 2 and all(len(set(rewards)) > 2 for rewards in groups.values())
        assert min(check(learner, weights, own, update, scope_eq_3, 1, whole=card == "qwen3-8b")) > 0.05
