"""Cards that train on given answers: one step against torch, the command, and a run that is killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.data.schemas import SCHEMAS
from scope_jax.errors import UserError
from scope_jax.games import GAMES, load_card
from scope_jax.models.files import weights
from scope_jax.play.game import play_step
from scope_jax.run.assemble import assemble
from scope_jax.train import learn
from tests.shallow import shallow
from tests.train import runs

ROOT = Path(__file__).parents[2]
SHORT = (
    "train.steps=4",
    "train.save_every=1",
    "train.batch_size=6",
    "evaluate.sets=[]",
    "rollout.max_length=64",
    "learner.buckets=[64]",
    "learner.micro_batch_rows=2",
    "learner.logprob_chunk=128",
)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def torch_loss(model, system: str, episodes) -> tuple[float, float]:
    """(loss, norm of its gradient) of the episodes' trained tokens, one row at a time."""

    def logprobs(datum):
        ids = torch.tensor(datum.ids_T, dtype=torch.long)
        logp = torch.log_softmax(model(ids[None], use_cache=False).logits[0, :-1].double(), -1)
        return logp.gather(1, ids[1:, None])[:, 0][torch.tensor(datum.sampled_T[1:])]

    each = [torch.cat([logprobs(datum) for datum in episode.datums]) for episode in episodes]
    if system == "sft":
        loss = -torch.cat(each).mean()
    else:  # the reference is the policy itself before its first step
        scores = [0.1 * (one - one.detach()).sum() for one in each]
        margins = [better - worse for better, worse in zip(scores[::2], scores[1::2], strict=True)]
        loss = torch.stack([torch.nn.functional.softplus(-margin) for margin in margins]).mean()
    loss.backward()
    norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None))
    return loss.item(), norm.item()


@pytest.mark.parametrize("system", ["dpo", pytest.param("sft", marks=pytest.mark.slow)])
def test_a_step_equals_torch(tmp_path, system):
    cfg = load_card(ROOT / "configs" / system / "atlas.toml", [*SHORT, f"model.checkpoint={shallow('spice')}"])
    trainer = assemble(cfg, tmp_path)
    states, memory, _ = trainer.start(None)
    params = jax.tree.map(jnp.copy, states["actor"].params)
    weights.save_hf(tmp_path / "hf", trainer.world.model, params, dtype=jnp.float32, tokenizer=None)
    episodes, memory, metrics = play_step(GAMES[system], cfg, trainer.world.tools(0), memory["game"], 0)
    assert set(metrics) == {f"{system}/episodes", f"{system}/too_long"}
    assert memory == {"drawn": 6} and metrics[f"{system}/episodes"] == len(episodes) == (6 if system == "sft" else 12)
    _, _, _, measured = learn(trainer, states, episodes, {})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    wanted = torch_loss(model.float(), system, episodes)
    np.testing.assert_allclose([measured[f"{system}/{name}"] for name in ("loss", "grad_norm")], wanted, rtol=2e-4)


def test_rows_that_are_too_long_are_left_out_and_told(tmp_path):
    row = {"prompt": "What is the capital of Austria?", "completion": "Vienna " * 80}
    rows = [SCHEMAS["conversations"](each, "f:1", {}) for each in (row, row | {"completion": "Vienna"})]
    cfg = load_card(ROOT / "configs" / "sft" / "atlas.toml", [*SHORT, "train.batch_size=2"])
    told: list[str] = []
    trainer = assemble(cfg, tmp_path, tell=told.append)
    tools = trainer.world.tools(0)
    object.__setattr__(trainer.world, "rows", rows)
    episodes, _, metrics = play_step(GAMES["sft"], cfg, tools, {"drawn": 0}, 0)
    assert len(episodes) == 1 and metrics["sft/too_long"] == 1.0
    assert told[-1].startswith("1 of 2 rows of this step are longer than the largest of learner.buckets")


@pytest.mark.parametrize(
    ("system", "key", "sentence"),
    [
        ("sft", "advantage='ema'", 'advantage has no effect with objective = "supervised"; remove it'),
        ("sft", "kl='k1'", "kl has no effect"),
        ("sft", "entropy_coef=0.1", "entropy_coef has no effect"),
        ("sft", "clip_high=0.4", "clip_high has no effect"),
        ("sft", "rollout_cap=2.0", "rollout_cap has no effect"),
        ("sft", "mini_batches=999999", r"mini_batches is 999999, but a step has train\.batch_size = 6 rows; lower it"),
        ("dpo", "kl='none'", 'kl has no effect with objective = "dpo"; remove it'),
        ("dpo", "aggregation='token-mean'", "aggregation has no effect"),
        ("dpo", "mini_batches=7", "mini_batches is 7"),
    ],
)
def test_keys_that_a_loss_does_not_read_are_refused(system, key, sentence):
    with pytest.raises(UserError, match=rf"{system}\.loss\.{sentence}"):
        load_card(ROOT / "configs" / system / "atlas.toml", [*SHORT, f"{system}.loss.{key}"])


@pytest.mark.slow
@pytest.mark.parametrize("system", ["sft", "dpo"])
def test_a_killed_run_ends_with_the_same_bits(tmp_path, system):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    card = f"{system}/atlas.toml"
    runs.finish(runs.command(card, whole, SHORT))
    process = runs.start(runs.command(card, cut, SHORT))
    runs.wait_for(process, lambda: (cut / "checkpoints" / "2").is_dir() or (cut / "checkpoints" / "3").is_dir())
    process.kill()
    process.communicate()
    runs.finish(runs.command(card, cut, SHORT))
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (whole, cut)]
    losses = [[json.loads(line)[f"{system}/loss"] for line in each] for each in lines]
    assert len(losses[0]) == 4 and losses[0] == losses[1] and losses[0][0] != losses[0][-1]


def test_the_commands_are_for_their_cards(tmp_path):
    for command, card in (("sft", "dpo"), ("dpo", "sft")):
        result = CliRunner().invoke(app, [command, str(ROOT / "configs" / card / "atlas.toml"), "--run", str(tmp_path)])
        assert result.exit_code == 2 and f"this command is for '{command}'" in result.stderr
    for system, objective in (("sft", "dpo"), ("dpo", "supervised")):
        with pytest.raises(UserError, match=rf"{system}\.loss\.objective must be"):
            load_card(ROOT / "configs" / system / "atlas.toml", [f'{system}.loss.objective="{objective}"'])
