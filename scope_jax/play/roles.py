"""`Role`: who speaks in a game, with which limits and prompts, and how it learns. A game lists its roles once.

From the list follow a run's policies, whether it keeps the base, its external models, the checks of its prompts, the
updates of a step, the names of metrics and the way exams are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scope_jax.config import AdvantageCard, AskSection, Config, JudgeSection, LossCard
from scope_jax.learner.types import RoleShare, Update
from scope_jax.play.prompting import Prompt
from scope_jax.play.rollouts import Agent
from scope_jax.play.searching import searches_run
from scope_jax.play.tool_calls import SEARCH_NAME
from scope_jax.play.tools import BASE, single_turn
from scope_jax.rollouts.types import Completion

Count = Callable[[Completion], int]


@dataclass(frozen=True)
class Role:
    """One role of a game."""

    name: str
    """In episodes, metrics and, unless a step says otherwise, in the keys of its requests."""
    speaker: Agent | JudgeSection
    """Who speaks: an agent of this run's weights, or an external model."""
    loss: LossCard | None = None
    """How its episodes are trained into the agent's policy; None: they are not."""
    advantage: AdvantageCard | None = None
    """How their advantages are computed; None: by the loss card."""
    weight: float = 1.0
    """Factor of their terms in the loss."""
    prompts: tuple[Prompt, ...] = ()
    """Its prompt files."""
    reminder: Prompt | None = None
    """The file of its agent's `reminder`, which is read when it speaks; None: the agent's own text."""
    table: str = ""
    """The key of its table in the card, for sentences about it."""
    searches: Count | None = None
    """Counts the searches of an episode; None: those that the card's dialect has in answered turns."""
    rejections: tuple[str, ...] = ()
    """Why its replies may be rejected, as `text["rejected"]` of an episode says; the shares of all are metrics."""

    @property
    def agent(self) -> Agent:
        """The agent that speaks. Raises TypeError for an external model."""
        if not isinstance(self.speaker, Agent):
            raise TypeError(f"the role {self.name} is an external model, which has no agent.")
        return self.speaker

    @property
    def external(self) -> JudgeSection | None:
        """The external model; None for an agent."""
        return None if isinstance(self.speaker, Agent) else self.speaker

    @property
    def learns(self) -> bool:
        """True if its episodes are trained."""
        return self.loss is not None

    @property
    def may_search(self) -> bool:
        """True if its turns may search."""
        tools = self.speaker.tools if isinstance(self.speaker, Agent) else ()
        return any((tool if isinstance(tool, str) else tool.name) == SEARCH_NAME for tool in tools)

    def with_reminder(self, cfg: Config) -> Role:
        """The role as it speaks: its agent has the text of the reminder. Raises PromptError."""
        if self.reminder is None:
            return self
        return replace(self, speaker=replace(self.agent, reminder=self.reminder.text(cfg)), reminder=None)

    def count_searches(self, cfg: Config, completion: Completion) -> int | None:
        """Number of searches of an episode; None for a role that cannot search."""
        if not self.may_search:
            return None
        return searches_run(cfg, completion) if self.searches is None else self.searches(completion)


def judge_role(name: str, table: str, card: AskSection, prompts: tuple[Prompt, ...] = ()) -> Role:
    """The role of a judge: the endpoint of its table, or the base. table: the table's key in the card."""
    if card.endpoint is None:
        return Role(name, Agent(BASE, single_turn(card.temperature, card.max_tokens)), prompts=prompts, table=table)
    endpoint = card.endpoint.model_dump()
    model = JudgeSection(**endpoint, temperature=card.temperature, max_tokens=card.max_tokens)
    return Role(name, model, prompts=prompts, table=table)


# -------------------------------------------------------------------------------------------- what follows from roles
def policies(roles: Iterable[Role]) -> tuple[str, ...]:
    """The policies of all roles that learn, each once, in order."""
    return tuple(dict.fromkeys(role.agent.policy for role in roles if role.learns))


def sample_base(roles: Iterable[Role]) -> bool:
    """True if one of the roles is spoken by the base."""
    return any(role.external is None and role.agent.policy == BASE for role in roles)


def external_models(roles: Iterable[Role]) -> dict[str, JudgeSection]:
    """The external models by the names of their roles."""
    return {role.name: role.external for role in roles if role.external is not None}


def updates(roles: Iterable[Role]) -> tuple[Update, ...]:
    """An update for each role that learns, in order."""
    return tuple(
        Update(role.agent.policy, role.loss, (RoleShare(role.name, role.advantage, role.weight),))
        for role in roles
        if role.loss is not None
    )


def one_update_per_policy(cfg: Config, updates: Sequence[Update]) -> tuple[Update, ...]:
    """One update in place of those of a policy, with the loss card of its first: all its roles are trained together.
    For `Game.arrange`."""
    by_policy: dict[str, list[Update]] = {}
    for update in updates:
        by_policy.setdefault(update.policy, []).append(update)
    return tuple(
        Update(policy, same[0].card, tuple(share for update in same for share in update.roles))
        for policy, same in by_policy.items()
    )
