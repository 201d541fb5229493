"""A probe (`run.probing`) in lines: replies with their grades, counts by role, and what usually helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scope_jax.learner.types import Episode
from scope_jax.play.roles import Role
from scope_jax.run.probing import ProbedGroup, ProbedRole, rejection

HEAD, TAIL = 160, 240  # characters of a text that are shown of its beginning and its end
DEMONSTRATIONS = (
    "demonstrations first (`scope-jax sft` on right replies to such prompts, then this card with the export as "
    "model.checkpoint; docs/rlvr.md#demonstrations-first)"
)


def lines(roles: Sequence[ProbedRole], of_game: Iterable[Role], groups: int) -> Iterator[str]:
    """The probe for people. of_game: the game's roles. groups: most that are shown of a role."""
    for role in roles:
        for group in role.groups[:groups]:
            yield from _shown(role, group)
    for role in roles:
        yield from _counted(role)
    advised = advice(roles, of_game)
    for sentence in advised:
        yield f"helps  {sentence}"
    if not advised:
        yield "ok     the rewards of this step give gradients"


def plain(roles: Sequence[ProbedRole], of_game: Iterable[Role]) -> dict[str, Any]:
    """The probe as JSON has it."""
    return {"roles": {role.name: role.counts() for role in roles}, "helps": advice(roles, of_game)}


# ------------------------------------------------------------------------------------------------------------- replies
def _shown(role: ProbedRole, group: ProbedGroup) -> Iterator[str]:
    """The prompt of a group, its rewards, and its best and its worst reply."""
    first = group.episodes[0]
    best = max(group.episodes, key=lambda episode: episode.reward)
    worst = min(group.episodes, key=lambda episode: episode.reward)
    rewards = " ".join(f"{episode.reward:.3g}" for episode in group.episodes)
    yield f"probe  {role.name}: rewards {rewards}"
    if "prompt" in first.text:
        yield f"       | prompt: {_cut(first.text['prompt'])}"
    if right := first.text.get("answers", first.text.get("answer")):
        yield f"       | right answer: {_cut(right if isinstance(right, str) else ' | '.join(map(str, right)))}"
    for episode in [best] if best.reward == worst.reward else [best, worst]:
        yield f"       | reward {episode.reward:.3g}: {_reply(episode)}"


def _reply(episode: Episode) -> str:
    """What was sampled for an episode, how it ended, and what its game has read."""
    turns = [turn["text"] for turn in episode.text.get("turns", ()) if turn["kind"] == "sampled"]
    said = _cut(" … ".join(turns)) or "(nothing)"
    prediction = episode.text.get("prediction")
    notes = [f"ended by {episode.finish}"]
    notes += [f"read as {_cut(str(prediction))!r}"] if prediction not in (None, *turns) else []
    notes += [reason] if (reason := rejection(episode)) else []
    return f"{said}  ({'; '.join(notes)})"


def _cut(text: str) -> str:
    """On one line, its beginning and its end."""
    line = " ".join(text.split())
    return line if len(line) <= HEAD + TAIL else f"{line[:HEAD].rstrip()} […] {line[-TAIL:].lstrip()}"


# -------------------------------------------------------------------------------------------------------------- counts
def _counted(role: ProbedRole) -> Iterator[str]:
    counts, replies = role.counts(), len(role.episodes)
    yield (
        f"probe  {role.name}: {replies} replies, mean reward {counts['reward']:.3g} "
        f"({counts['lowest_reward']:.3g} to {counts['highest_reward']:.3g}; above 0 in {counts['rewarded']}), "
        f"{role.cut} cut by a limit of tokens, {_rejections(role)}; {_gradients(role)}"
    )


def _rejections(role: ProbedRole) -> str:
    reasons = role.rejected.most_common()
    shown = ", ".join(f"{reason} {count}" for reason, count in reasons)
    return f"{role.rejected.total()} rejected ({shown})" if reasons else "none rejected"


def _gradients(role: ProbedRole) -> str:
    if role.taught:
        return "it learns from a teacher, whatever the rewards"
    if not role.trained:
        return "not trained in this step"
    return f"{role.teaching} of {len(role.trained)} groups have a gradient"


# -------------------------------------------------------------------------------------------------------------- advice
def advice(roles: Sequence[ProbedRole], of_game: Iterable[Role]) -> list[str]:
    """What usually helps, by what is seen in the roles that are trained."""
    known = {role.name: role for role in of_game}
    return [
        f"{role.name}: {sentence}"
        for role in roles
        if role.trained and not role.taught
        for sentence in _advice(role, known.get(role.name))
    ]


def _advice(role: ProbedRole, of_game: Role | None) -> Iterator[str]:
    """For a role: limits and form first, as they hide whether replies are right; then its groups, if more than half
    have no gradient."""
    sampling = f"{of_game.table}.sampling" if of_game is not None and of_game.table else "its sampling"
    most = len(role.episodes) / 2
    if role.cut > most:
        yield (
            f"most replies are cut: raise max_tokens and max_response_tokens of {sampling}, and rollout.max_length; if "
            "none ends by itself even then, the model was not taught to stop (docs/models.md#where-replies-end)"
        )
    elif role.rejected.total() > most:
        yield (
            "most replies have nothing that can be graded: say in the prompt how the answer is to be written, look for "
            f"it where the model writes it, or show it by {DEMONSTRATIONS}"
        )
    if 2 * role.teaching >= len(role.trained):
        return
    alike = [group.episodes[0].reward for group in role.trained if not group.teaches]
    low = sum(reward <= 0 for reward in alike)
    silent = f"{len(alike)} of {len(role.trained)} groups teach nothing"
    if 2 * low > len(alike):
        yield (
            f"{silent}, as nearly all of their replies are wrong: {DEMONSTRATIONS}; a lower temperature in {sampling}; "
            "a softer grader; easier rows; more samples of a prompt"
        )
    else:
        yield (
            f"{silent}, as nearly all of their replies are right: harder rows, a stricter grader, a higher temperature "
            f"in {sampling}, or fewer rows of this kind"
        )
