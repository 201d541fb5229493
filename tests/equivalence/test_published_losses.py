"""The cards of docs/losses.md and docs/rlvr.md against the papers' equations, in torch over padded rows: value and
gradient.

The input is rewards, so that advantages are tested too. Two groups of three completions; there are ratios below and
above every clip range.
"""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LossCard
from scope_jax.games.rlvr.options import RLVRSection
from scope_jax.learner import advantages, losses

torch = pytest.importorskip("torch")

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS, LENGTH = 6, 7
BASELINE = 0.35  # b_{t−1}, for the card with a moving baseline


def blocks(page: str, heading: str) -> dict[str, dict]:
    """The tables below a heading by the name before the bracket."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"([^\n]+(?:\n[^\n]+)*)\n\n```toml\n(.*?)```", text, re.DOTALL)
    return {above.split(" (")[0]: tomllib.loads(table) for above, table in found}


CARDS = {name: LossCard(**table) for name, table in blocks("losses.md", "Published algorithms as cards").items()}
OF_RLVR = {name: RLVRSection(**card["rlvr"]).loss for name, card in blocks("rlvr.md", "Algorithms").items()}


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(5)
    mask_BT = np.arange(LENGTH) < np.array([7, 3, 5, 1, 6, 4])[:, None]
    logp_BT = -2 + 0.5 * rng.normal(size=(ROWS, LENGTH))
    scale_B1 = np.array([[0.4], [0.4], [0.4], [0.4], [1e-4], [2e-4]])  # some ratios are within the tightest range
    old_BT = logp_BT + scale_B1 * rng.normal(size=logp_BT.shape)
    ref_BT = logp_BT + 0.5 * rng.normal(size=logp_BT.shape)
    rewards_B = np.array([1.0, 0.0, 0.4, 0.2, 0.9, -0.3])
    return {"mask": mask_BT, "logp": logp_BT, "old": old_BT, "ref": ref_BT, "rewards": rewards_B}


def zscored(r_B):
    r_PG = r_B.view(2, 3)
    return ((r_PG - r_PG.mean(1, keepdim=True)) / (r_PG.std(1, keepdim=True) + 1e-6)).flatten()


def whitened(x_B, mask_BT):
    """Each episode's value on all its tokens, whitened to mean 0 and variance 1 over the tokens of the batch."""
    tokens = torch.repeat_interleave(x_B, mask_BT.sum(1))
    white = (tokens - tokens.mean()) * torch.rsqrt(tokens.var() + 1e-8)
    return white[torch.cumsum(mask_BT.sum(1), 0) - 1]


def clipped(ratio, advantage, low, high):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def printed(name, logp, old, ref, r_B, mask_BT):
    """The loss as in the paper."""
    mask = mask_BT.double()
    length_B = mask.sum(1)
    ratio, delta = torch.exp(logp - old), logp - ref
    k3, k2 = torch.exp(-delta) + delta - 1, 0.5 * delta**2
    centred_B = r_B - r_B.view(2, 3).mean(1).repeat_interleave(3)

    def per_sequence(x_BT):
        return (x_BT * mask).sum(1)

    match name:
        case "GRPO":
            inner = clipped(ratio, zscored(r_B)[:, None], 0.2, 0.2) - 0.04 * k3
            return -(per_sequence(inner) / length_B).mean()
        case "Dr. GRPO":
            return -per_sequence(clipped(ratio, centred_B[:, None], 0.2, 0.2)).mean() / 3000
        case "DAPO":
            return -per_sequence(clipped(ratio, zscored(r_B)[:, None], 0.2, 0.28)).sum() / mask.sum()
        case "GSPO":
            s_B = torch.exp(per_sequence(logp - old) / length_B)
            return -clipped(s_B, zscored(r_B), 3e-4, 4e-4).mean()
        case "CISPO":
            weight = ratio.clamp(max=5.0).detach()
            return -per_sequence(weight * zscored(r_B)[:, None] * logp).sum() / mask.sum()
        case "REINFORCE":
            return -(r_B * per_sequence(logp)).mean()
        case "RLOO":
            others_B = (r_B.view(2, 3).sum(1).repeat_interleave(3) - r_B) / 2
            return -((r_B - others_B) * per_sequence(logp)).mean()
        case "REINFORCE++" | "REINFORCE++-baseline":
            advantage = whitened(r_B if name == "REINFORCE++" else centred_B, mask_BT)[:, None]
            inner = clipped(ratio, advantage, 0.2, 0.2) - 0.01 * ratio.detach() * k2
            return -per_sequence(inner).sum() / mask.sum()
        case "REINFORCE with a moving baseline":
            inner = (r_B - BASELINE)[:, None] * logp - 0.05 * k3
            return -(per_sequence(inner) / length_B).mean()
    raise AssertionError(f"no formula for {name}")


def ours(card, world):
    """(loss, ∂loss/∂log π [B, T]) in float64."""
    mask_BT, groups = world["mask"], ["a"] * 3 + ["b"] * 3
    length_B = mask_BT.sum(1).astype(np.float64)
    advantage_B = advantages.compute(world["rewards"], groups, length_B, card, BASELINE)
    rows, columns = np.nonzero(mask_BT)
    tokens = losses.LossInputs(
        mask_N=jnp.ones(len(rows), bool),
        first_N=jnp.asarray(columns == 0),
        sequence_N=jnp.asarray(rows, jnp.int32),
        length_N=jnp.asarray(length_B[rows]),
        advantage_N=jnp.asarray(advantage_B[rows]),
        behaviour_N=jnp.asarray(world["old"][rows, columns]),
        weight_N=jnp.ones(len(rows)),
        old_N=jnp.asarray(world["old"][rows, columns]),
        ref_N=jnp.asarray(world["ref"][rows, columns]) if card.kl != "none" else None,
    )
    logp_N = jnp.asarray(world["logp"][rows, columns])
    sums = losses.sequence_sums(logp_N, tokens, card, ROWS) if losses.by_sequence(card) else None
    divisor = losses.denominator(card, jnp.float64(len(rows)), jnp.float64(ROWS))
    loss, grad_N = jax.value_and_grad(
        lambda x_N: losses.loss_parts(x_N, tokens, card, sequences=sums).numerator / divisor
    )(logp_N)
    grad_BT = np.zeros((ROWS, LENGTH))
    grad_BT[rows, columns] = grad_N
    return float(loss), grad_BT


def test_the_document_has_a_card_for_every_loss():
    assert len(CARDS) == 10
    assert {"GRPO", "Dr. GRPO", "DAPO", "GSPO", "CISPO", "REINFORCE", "RLOO", "REINFORCE++"} < set(CARDS)


def test_the_page_of_rlvr_has_four_cards_and_its_default_is_the_first():
    assert list(OF_RLVR) == ["GRPO", "Dr. GRPO", "RLOO", "REINFORCE++"]
    assert RLVRSection().loss == OF_RLVR["GRPO"]


@pytest.mark.parametrize(
    ("name", "card"), [*CARDS.items(), *OF_RLVR.items()], ids=[*CARDS, *(f"rlvr, {name}" for name in OF_RLVR)]
)
def test_card_equals_the_papers_equation(world, name, card):
    """To 1e-10 in float64."""
    logp = torch.tensor(world["logp"], requires_grad=True)
    fixed = [torch.tensor(world[key]) for key in ("old", "ref", "rewards", "mask")]
    theirs = printed(name, logp, *fixed)
    theirs.backward()
    with jax.enable_x64(True):
        loss, grad_BT = ours(card, world)
    assert abs(loss - theirs.item()) <= 1e-10 * abs(theirs.item())
    size = float(logp.grad.abs().max())
    assert np.abs(grad_BT - logp.grad.numpy()).max() <= 1e-10 * size
    assert size > 1e-6


def test_ratios_lie_on_both_sides_of_every_clip_range(world):
    mask_BT = world["mask"]
    ratio = np.exp(world["logp"] - world["old"])
    mean_B = np.exp(((world["logp"] - world["old"]) * mask_BT).sum(1) / mask_BT.sum(1))
    assert (ratio[mask_BT] > 1.28).any() and (ratio[mask_BT] < 0.8).any() and (abs(ratio[mask_BT] - 1) < 0.2).any()
    assert (mean_B > 1 + 4e-4).any() and (mean_B < 1 - 3e-4).any() and (abs(mean_B - 1) < 3e-4).any()
