"""A probe: a few prompts of a run's first step, sampled and graded as the run will, without learning and without a run.

The step is the card's own with fewer prompts: the same rows, weights and keys of samples, so that the replies to a
prompt are those of the run. A game that divides tasks over its whole batch may divide fewer prompts otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.grading.measures import cover_exact_match
from scope_jax.grading.rewards import mean
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode, Update
from scope_jax.play.game import Game, play_step
from scope_jax.play.tool_turns import UNFINISHED
from scope_jax.run.assemble import assemble
from scope_jax.run.fetching import fetched
from scope_jax.run.given_answers import KINDS
from scope_jax.run.indexing import Part
from scope_jax.run.origin import with_origin
from scope_jax.run.programs import keep_programs
from scope_jax.run.start import beginning
from scope_jax.run.watch import learns_otherwise

NO_ANSWER, NOT_VALID = "no answer", "not valid"
READ = {"answered": NO_ANSWER, "format": NO_ANSWER, "valid": NOT_VALID}  # parts that are 0 of what cannot be graded


@dataclass(frozen=True)
class ProbedGroup:
    """The replies that are compared with each other."""

    name: str
    """That of the group."""
    episodes: Sequence[Episode]
    """Of its replies, at least one; those that are trained have their advantages."""

    @property
    def trained(self) -> bool:
        """Whether any of them is trained by its reward."""
        return any(episode.trained and episode.advantage is not None for episode in self.episodes)

    @property
    def teaches(self) -> bool:
        """Whether its rewards give a gradient."""
        return any(episode.trained and episode.signal != 0 for episode in self.episodes)


@dataclass(frozen=True)
class ProbedRole:
    """What a role has said in the step."""

    name: str
    """The role's."""
    groups: Sequence[ProbedGroup]
    """Its replies."""
    has_teacher: bool = False
    """It learns from a teacher, whatever its rewards."""

    @property
    def episodes(self) -> list[Episode]:
        """All of its replies."""
        return [episode for group in self.groups for episode in group.episodes]

    @property
    def rewards(self) -> list[float]:
        """Theirs."""
        return [episode.reward for episode in self.episodes]

    @property
    def cut(self) -> int:
        """How many a limit of tokens has ended."""
        return sum(episode.finish in UNFINISHED for episode in self.episodes)

    @property
    def rejected(self) -> Counter[str]:
        """How many could not be graded as an answer, by the reason."""
        return Counter(reason for episode in self.episodes if (reason := rejection(episode)))

    @property
    def contained(self) -> int:
        """How many have no reward although what was read of them contains the right answer."""
        return sum(
            cover_exact_match(prediction, answers)
            for episode in self.episodes
            if episode.reward <= 0
            and isinstance(prediction := episode.text.get("prediction"), str)
            and isinstance(answers := episode.text.get("answers"), list | tuple)
        )

    @property
    def trained(self) -> list[ProbedGroup]:
        """The groups that are trained by their rewards."""
        return [group for group in self.groups if group.trained]

    @property
    def teaching(self) -> int:
        """How many of those have a gradient."""
        return sum(group.teaches for group in self.trained)

    def counts(self) -> dict[str, object]:
        """The figures, as plain data."""
        return {
            "replies": len(self.episodes),
            "reward": mean(self.rewards),
            "lowest_reward": min(self.rewards),
            "highest_reward": max(self.rewards),
            "rewarded": sum(reward > 0 for reward in self.rewards),
            "cut": self.cut,
            "rejected": dict(self.rejected),
            "wrong_but_contained": self.contained,
            "groups": len(self.trained),
            "groups_with_gradient": self.teaching,
        }


def rejection(episode: Episode) -> str:
    """Why its game could not grade it as an answer; "": it could."""
    if reason := episode.text.get("rejected"):
        return str(reason)
    if "prediction" in episode.text and episode.text["prediction"] is None:
        return NO_ANSWER
    return next((reason for part, reason in READ.items() if episode.parts.get(part) == 0), "")


def probed_roles(
    episodes: Iterable[Episode], updates: Sequence[Update], baselines: Mapping[str, float]
) -> list[ProbedRole]:
    """The roles whose replies are among a step's episodes, in order, with the advantages of its updates. baselines: the
    moving ones before it, by "policy/role"."""
    rated, known = list(episodes), dict(baselines)
    for update in updates:
        result = advantages.for_update(update, rated, known)
        rated = result.episodes
        known |= {f"{update.policy}/{role}": value for role, value in result.baselines.items()}
    by_role: dict[str, dict[tuple[str, str], list[Episode]]] = {}
    for episode in rated:
        if episode.finish and not episode.padding:
            groups = by_role.setdefault(episode.role, {})
            groups.setdefault((episode.policy, episode.group), []).append(episode)
    with_teacher = learns_otherwise(updates)
    return [
        ProbedRole(role, [ProbedGroup(name, same) for (_, name), same in groups.items()], role in with_teacher)
        for role, groups in by_role.items()
    ]


# ------------------------------------------------------------------------------------------------------- the first step
def check_sampled(cfg: Config) -> None:
    """Raises UserError for a game whose answers are given."""
    source = game_of(cfg).rows(cfg)
    if source is not None and source.kind in KINDS:
        raise UserError(
            f"{cfg.system} samples nothing, as its answers are given in {source.path}; check the card without --probe, "
            "which shows one of them."
        )


def fewer(cfg: Config, game: Game, prompts: int) -> Config:
    """The card with steps of at most so many prompts, or whatever its game counts in a step."""
    for key in game.batch or ("train.batch_size",):
        table, name = key.split(".")
        section = getattr(cfg, table)
        smaller = section.model_copy(update={name: min(prompts, getattr(section, name))})
        cfg = cfg.model_copy(update={table: smaller})
    return cfg


def probe(
    cfg: Config,
    prompts: int,
    say: Callable[[str], None],
    part: Part,
    follow: Callable[[Callable[[], str]], None] = lambda status: None,
) -> list[ProbedRole]:
    """The roles of the first step of a card that follows the rules, played with at most so many prompts.

    say, part: as `tell`, `part` of `assemble`; follow: is given what says what is going on. Nothing is written but
    compiled programs. Raises UserError as a start of a run does, and if the step samples nothing.
    """
    check_sampled(cfg)
    keep_programs(cfg.train.compilation_cache)
    with TemporaryDirectory() as scratch:
        cfg = fetched(with_origin(fewer(cfg, game_of(cfg), prompts), Path(scratch)), say)
        say(f"loading {cfg.model.checkpoint}" + (" and the search index" if cfg.retrieval is not None else ""))
        trainer = assemble(cfg, Path(scratch), part, say)
        world = trainer.world
        with closing(world):
            follow(world.status)
            states, memory, done = beginning(trainer)
            world.sampler.publish(states)
            world.recording.begin(done + 1)
            world.activity.place = "probe"
            with world.activity("playing"):
                episodes, _, _ = play_step(world.game, cfg, world.tools(done), memory["game"], done)
    roles = probed_roles(episodes, world.game.updates(cfg), memory["baselines"])
    if not roles:
        raise UserError(f"the first step of {world.game.title} samples nothing, so there is nothing to probe.")
    return roles
