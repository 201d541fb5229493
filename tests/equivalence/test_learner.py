"""The whole update against transformers' Qwen3 in torch: loss, gradient and a trajectory of AdamW steps.

Torch runs one unpadded sequence at a time, without packing, micro-batches or chunks.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.files.weights import load_hf
from scope_jax.sharding.mesh import MeshConfig, make_mesh

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, TEMPERATURE, TEACHER_COEF = 20, 0.8, 0.3
CARD = LossCard(kl="k3", kl_coef=0.2, clip_low=0.2, clip_high=0.28, old_logprobs="rollout")
OPTIMIZER = OptimizerSection(learning_rate=2e-4, warmup_steps=4, weight_decay=0.05, max_grad_norm=0.8)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(torch policy, torch reference, our config, our policy weights, our reference weights)."""
    config = transformers.Qwen3Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    loaded = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = transformers.Qwen3ForCausalLM(config).eval()
        folder = tmp_path_factory.mktemp(f"hf{seed}")
        model.save_pretrained(folder)
        cfg, params = load_hf(folder)
        loaded.append((model, params))
    (policy, params), (reference, ref_params) = loaded
    return policy, reference, cfg, params, ref_params


@pytest.fixture(scope="module")
def episodes(models):
    """Ten episodes; behaviour log-probs are the policy's own plus noise, so that the ratios spread around 1."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(10):
        prompt, first, seen, second = rng.integers(1, 7), rng.integers(1, 8), rng.integers(0, 5), rng.integers(0, 7)
        sampled = np.repeat([False, True, False, True], [prompt, first, seen, second])
        ids = rng.integers(0, 96, len(sampled)).astype(np.int32)
        datum = Datum(ids, sampled, np.zeros(len(ids), np.float32))
        with torch.no_grad():
            noise = torch.tensor(rng.normal(size=int(sampled.sum())) * 0.2)
            logprobs = (torch_logprobs(models[0], datum) + noise).float().numpy()
        behaviour = np.zeros(len(ids), np.float32)
        behaviour[sampled] = logprobs
        datum = Datum(ids, sampled, behaviour)
        made.append(Episode("solver", "actor", str(number // 2), (datum,), 0.0, advantage=float(rng.normal())))
    return made


def torch_logprobs(model, datum):
    ids = torch.tensor(datum.ids_T, dtype=torch.long)
    logits = model(ids[None], use_cache=False).logits[0, :-1] / TEMPERATURE
    logp = torch.log_softmax(logits.double(), -1).gather(1, ids[1:, None])[:, 0]
    return logp[torch.tensor(datum.sampled_T[1:])]


def torch_loss(policy, reference, episodes):
    """sequence-mean of the surrogate with clip and dual clip, and of importance-weighted k3, to the reference and to a
    teacher if the episodes have one; credits are added to the advantage."""
    losses = []
    for episode in episodes:
        (datum,) = episode.datums
        logp = torch_logprobs(policy, datum)
        with torch.no_grad():
            ref = torch_logprobs(reference, datum)
        ratio = torch.exp(logp - torch.tensor(datum.logprobs_T[datum.sampled_T]).double())
        advantage = torch.full_like(logp, episode.advantage)
        if datum.credit_T is not None:
            advantage = advantage + torch.tensor(datum.credit_T[datum.sampled_T]).double()
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        objective = torch.where(advantage < 0, torch.maximum(objective, 3.0 * advantage), objective)
        kl = CARD.kl_coef * ratio * (torch.exp(ref - logp) - 1 + logp - ref)
        if datum.teacher_T is not None:
            delta = logp - torch.tensor(datum.teacher_T[datum.sampled_T]).double()
            kl = kl + TEACHER_COEF * ratio * (torch.exp(-delta) - 1 + delta)
        losses.append((kl - objective).mean())
    return torch.stack(losses).mean()


def theirs(models, episodes):
    """Per step: loss, norm before clipping; after the last: weights by name."""
    policy, reference = models[:2]
    optimizer = torch.optim.AdamW(policy.parameters(), OPTIMIZER.learning_rate, weight_decay=OPTIMIZER.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / OPTIMIZER.warmup_steps))
    records = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch_loss(policy, reference, episodes)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), OPTIMIZER.max_grad_norm)
        optimizer.step()
        schedule.step()
        records.append((loss.item(), norm.item()))
    return records


def test_credits_and_a_teacher_equal_torch(models, episodes):
    """One update: each token with its own advantage, and a KL to log-probs that came with the episodes."""
    policy, reference, cfg, params, ref_params = models
    rng, rated = np.random.default_rng(1), []
    for episode in episodes:
        (datum,) = episode.datums
        teacher = datum.logprobs_T[datum.sampled_T] + rng.normal(size=datum.sampled_T.sum()) / 2
        credit_T = rng.normal(size=len(datum.ids_T)).astype(np.float32)  # where nothing was sampled it has no effect
        rated.append(replace(episode, datums=(replace(datum.with_teacher(teacher), credit_T=credit_T),)))
    card = CARD.model_copy(update={"teacher": "k3", "teacher_coef": TEACHER_COEF})
    section = LearnerSection(buckets=(32,), micro_batch_rows=2, logprob_chunk=16)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(cfg, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(params).replace(ref_params=ref_params)
    tempered = [replace(episode, temperature=TEMPERATURE) for episode in rated]
    _, metrics = learner.update(state, learner.pack(tempered, card), card)
    policy.zero_grad()
    loss, plain = torch_loss(policy, reference, rated), torch_loss(policy, reference, episodes)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1e9)
    np.testing.assert_allclose((metrics["loss"], metrics["grad_norm"]), (loss.item(), norm.item()), rtol=1e-5)
    assert abs(loss.item() - plain.item()) > 0.01 and metrics["teacher_k3"] > 0


def test_groups_whose_prompts_are_computed_once_equal_torch(models):
    """Torch computes every answer with its own copy of the prompt."""
    policy, reference, cfg, params, ref_params = models
    rng, made = np.random.default_rng(2), []
    for group in range(2):
        prompt = rng.integers(0, 96, 14)
        for count in (5, 8, 2, 6):
            ids = np.concatenate([prompt, rng.integers(0, 96, count)]).astype(np.int32)
            sampled = np.arange(len(ids)) >= len(prompt)
            with torch.no_grad():
                own = torch_logprobs(policy, Datum(ids, sampled, np.zeros(len(ids), np.float32)))
            behaviour = np.zeros(len(ids), np.float32)
            behaviour[sampled] = own.float().numpy() + rng.normal(size=count) * 0.2
            datum = Datum(ids, sampled, behaviour)
            made.append(Episode("solver", "actor", str(group), (datum,), 0.0, advantage=float(rng.normal())))
    section = LearnerSection(buckets=(48,), micro_batch_rows=2, logprob_chunk=16)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(cfg, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(params).replace(ref_params=ref_params)
    tempered = [replace(episode, temperature=TEMPERATURE) for episode in made]
    _, metrics = learner.update(state, learner.pack(tempered, CARD), CARD)
    assert metrics["shared_tokens"] == 6 * 14
    policy.zero_grad()
    loss = torch_loss(policy, reference, made)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1e9)
    np.testing.assert_allclose((metrics["loss"], metrics["grad_norm"]), (loss.item(), norm.item()), rtol=1e-5)


def test_update_trajectory_equals_torch(models, episodes, tmp_path):
    policy, _, cfg, params, ref_params = models
    section = LearnerSection(buckets=(32,), micro_batch_rows=2, logprob_chunk=16)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(cfg, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(params)
    state = state.replace(ref_params=ref_params)
    batches = learner.pack([replace(episode, temperature=TEMPERATURE) for episode in episodes], CARD)
    records = []
    for _ in range(STEPS):
        state, metrics = learner.update(state, batches, CARD)
        records.append((metrics["loss"], metrics["grad_norm"]))
    wanted = theirs(models, episodes)
    np.testing.assert_allclose(records[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(np.array(records), np.array(wanted), rtol=2e-4)
    assert metrics["clip_fraction"] > 0
    norms = [norm for _, norm in wanted]
    assert max(norms) > OPTIMIZER.max_grad_norm
    policy.save_pretrained(tmp_path)
    _, final = load_hf(tmp_path)
    for ours, their, start in zip(*(jax.tree.leaves(t) for t in (state.params, final, params)), strict=True):
        moved = np.abs(np.asarray(their) - np.asarray(start)).max()
        assert np.abs(np.asarray(ours) - np.asarray(their)).max() <= 1e-5 * np.abs(np.asarray(their)).max()
        assert moved > 1e-3
