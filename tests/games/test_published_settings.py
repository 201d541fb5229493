"""Defaults that are figures of the papers: no card or page has to repeat them."""

from __future__ import annotations

from functools import reduce

import pytest

from scope_jax.config.base import Section
from scope_jax.games.scope.options import ScopeSection
from scope_jax.games.score.options import ScoreSection
from scope_jax.games.spell.options import SpellSection
from scope_jax.games.spiral.options import SpiralSection

# by key: (figure, where it stands)
SCOPE = {
    "iterations": (3, "Table 9"),
    "steps_per_iteration": (20, "Table 9"),
    "challenger_batch": (64, "Table 9"),
    "solver_batch": (256, "Table 9"),
    "challenger.samples": (8, "Table 9"),
    "solver.samples": (8, "Table 9"),
    "challenger.max_prompt_tokens": (1024, "Table 9"),
    "solver.max_prompt_tokens": (2048, "Table 9"),
    "challenger_reward.format": (0.5, "Table 9"),
    "challenger_reward.difficulty": (1.0, "Table 9"),
    "challenger_reward.target": (0.5, "Table 9"),
    "solver_reward.rubric": (1.0, "Table 9"),
    "solver_reward.format": (0.5, "Table 9"),
    "solver_reward.search": (0.1, "Table 9"),
    "solver_reward.searches": (3, "Table 9"),
    "solver_reward.soft_limit": (1024, "Table 9"),
    "solver_reward.hard_limit": (2048, "Table 9"),
    "solver_reward.floor": (0.05, "Table 9"),
    "n_train": (8, "Table 9"),
    "rubric_writer.temperature": (0.0, "Table 9"),
    "rubric_writer.max_tokens": (8192, "Table 9"),
    "min_rubrics": (3, "Table 9"),
    "grader.temperature": (0.6, "Table 9"),
    "grader.max_tokens": (16_384, "Table 9"),
}
SCORE = {
    "solver.samples": (8, "Table 2"),
    "solver.max_turns": (10, "Table 2"),
    "solver.max_prompt_tokens": (8192, "Table 2"),
    "evaluator.max_prompt_tokens": (8192, "Table 2"),
    "evaluator.max_turns": (10, "Table 2"),
    "evaluator.sampling.max_tokens": (2048, "Table 2"),
    "evaluator.sampling.temperature": (0.8, "Table 2"),
    "evaluator.loss.ema_decay": (0.7, "Table 2"),
    "evaluator.loss.kl_coef": (0.05, "Table 2"),
    "update_every": (1, "Table 2"),
    "harness.every": (5, "Table 2"),
}
SPELL = {
    "responder.samples": (8, "section 5.1"),
    "verifier.samples": (8, "section 5.1"),
    "responder.sampling.temperature": (0.7, "section 5.1"),
    "responder.sampling.top_p": (0.95, "section 5.1"),
    "responder.sampling.max_tokens": (4096, "section 5.1"),
    "responder.max_prompt_tokens": (16_384, "section 5.1"),
    "history": (3, "section 5.1"),
    "documents": (5, "section 5.1"),
    "groups": (128, "section 5.1"),
    "target": (0.5, "Table 3"),
    "width": (0.5 / 3, "Table 3"),
}
SPIRAL = {
    "sampling.max_tokens": (4096, "released code"),
    "loss.constant_length": (4096, "released code"),
    "loss.ema_decay": (0.95, "section 3"),
}


@pytest.mark.parametrize(
    ("section", "published"),
    [(ScopeSection, SCOPE), (ScoreSection, SCORE), (SpellSection, SPELL), (SpiralSection, SPIRAL)],
)
def test_defaults_are_the_figures_of_the_papers(
    section: type[Section], published: dict[str, tuple[float, str]]
) -> None:
    defaults = section()
    actual = {key: reduce(getattr, key.split("."), defaults) for key in published}
    assert actual == {key: figure for key, (figure, _) in published.items()}
