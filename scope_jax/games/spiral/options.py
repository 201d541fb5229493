"""The [spiral] table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scope_jax.config.base import CardPath, Count, GameSection, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import SamplingSection

Name = Literal["tictactoe", "kuhn_poker", "negotiation"]
Reward = Annotated[float, Field(ge=-100, le=100)]


class SpiralSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("spiral")
    """Folder with `<game>.txt`, and `player.txt` around that `{observation}` (`player.system.txt`: optional)."""
    games: dict[Name, Count] = Field(default_factory=lambda: {"kuhn_poker": 1}, min_length=1)
    """The games, and how often each is played, relative to the others."""
    turns: Count = 128
    """Turns that a step trains, drawn from those of whole games, of which an eighth as many are played at a time."""
    passes: Count = 2
    """Updates on these turns; after the first, ratios are to the weights that played if `old_logprobs = "rollout"`."""
    policies: tuple[str, ...] = Field(("actor",), min_length=1, max_length=2, strict=False)
    """One policy for both seats, or one for each."""
    opponent: Literal["self", "random"] = "self"
    """Who has the other seat: the policies themselves, or legal actions are drawn, and the seats alternate."""
    invalid_reward: tuple[Reward, Reward] = Field((-1.5, 0.5), strict=False)
    """Rewards if a turn has no legal action in its box, which ends the game: of that player, and of the other."""
    max_turns: Count = 50
    """A game with so many turns is a draw."""
    kuhn_hands: Count = 5
    """Hands of a game of Kuhn poker."""
    kuhn_by_chips: bool = False
    """The reward in Kuhn poker: the number of chips won; false: 1 for more chips than the other, -1 for fewer."""
    negotiation: tuple[Count, Count] = Field((10, 10), strict=False)
    """Turns of a negotiation, and units of wood and of gold that each player begins with."""
    sampling: SamplingSection = SamplingSection(max_tokens=4096, max_response_tokens=8192)
    """How turns are sampled."""
    loss: LossCard = LossCard(
        advantage="ema",
        ema_decay=0.95,
        aggregation="constant",
        constant_length=4096,
        old_logprobs="rollout",
        dual_clip=0.0,
        kl="none",
    )
    """The loss of turns, each a sequence. `ema`: role-conditioned advantages, whose baselines move with every game."""


def options(cfg: Config) -> SpiralSection:
    """The card's [spiral] table."""
    return cfg.options(SpiralSection)
