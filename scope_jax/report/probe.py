"""A probe (`run.probing`) in lines: replies with their grades, counts by role, and what usually helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scope_jax.learner.types import Episode
from scope_jax.play.roles import Role
from scope_jax.run.probing import ProbedGroup, ProbedRole, rejection

HEAD, TAIL = 160, 240  # characters of a text that are shown of its beginning and its end
ANSWERS = ("answer", "answers")  # fields of an episode's text that may say what is right
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
    sentences = advice(roles, of_game)
    for sentence in sentences:
        yield f"helps  {sentence}"
    if not sentences and any(role.teaching for role in roles):
        yield "ok     the rewards of this step give gradients"


def plain(roles: Sequence[ProbedRole], of_game: Iterable[Role]) -> dict[str, Any]:
    """The probe as JSON has it."""
    return {"roles": {role.name: role.counts() for role in roles}, "helps": advice(roles, of_game)}


# ------------------------------------------------------------------------------------------------------------- replies
def _shown(role: ProbedRole, group: ProbedGroup) -> Iterator[str]:
    """The prompt of a group, its rewards, and its best and its worst reply, the first and the last one if all are
    equal."""
    first = group.episodes[0]
    best = max(group.episodes, key=lambda episode: episode.reward)
    worst = min(reversed(group.episodes), key=lambda episode: episode.reward)
    rewards = " ".join(f"{episode.reward:.3g}" for episode in group.episodes)
    yield f"probe  {role.name}: rewards {rewards}"
    if "prompt" in first.text:
        yield f"       | prompt: {_cut(first.text['prompt'])}"
    for field in ANSWERS:
        values = [episode.text.get(field) for episode in group.episodes]
        if (value := values[0]) and values == [value] * len(values):
            yield f"       | {field}: {_cut(value if isinstance(value, str) else ' | '.join(map(str, value)))}"
    for episode in [best] if best is worst else [best, worst]:
        yield f"       | reward {episode.reward:.3g}: {_reply(episode)}"


def _reply(episode: Episode) -> str:
    """What was sampled for an episode, how it ended, and what its game has read."""
    turns = [turn["text"] for turn in episode.text.get("turns", ()) if turn["kind"] == "sampled"]
    said = _cut(" … ".join(turns)) or "(nothing)"
    prediction = _cut(str(episode.text.get("prediction") or ""))
    notes = [f"ended by {episode.finish}"]
    notes += [f"read as {prediction!r}"] if prediction not in ("", said) else []
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


def _compared(role: ProbedRole) -> str:
    """What the rewards of which are compared; those of single replies over the whole update."""
    return "groups" if any(len(group.episodes) > 1 for group in role.trained) else "replies"


def _gradients(role: ProbedRole) -> str:
    if role.has_teacher:
        return "it learns from a teacher, whatever the rewards"
    if not role.trained:
        return "not trained in this step"
    return f"{role.teaching} of {len(role.trained)} {_compared(role)} have a gradient"


# -------------------------------------------------------------------------------------------------------------- advice
def advice(roles: Sequence[ProbedRole], of_game: Iterable[Role]) -> list[str]:
    """What usually helps, by what is seen in the roles that are trained."""
    known = {role.name: role for role in of_game}
    return [
        f"{role.name}: {sentence}"
        for role in roles
        if role.trained and not role.has_teacher
        for sentence in _advice(role, known.get(role.name))
    ]


def _advice(role: ProbedRole, of_game: Role | None) -> Iterator[str]:
    """For a role. Limits come first, and alone if they cut so many replies that nothing else can be seen; then, if
    fewer than half of its groups have a gradient, the form of its replies, or how hard its prompts are."""
    sampling = f"{of_game.table}.sampling" if of_game is not None and of_game.table else "its sampling"
    replies = len(role.episodes)
    if 2 * role.cut > replies:
        yield (
            f"most replies are cut: raise max_tokens and max_response_tokens of {sampling}, or rollout.max_length; if "
            "hardly any ends by itself even then, the model was not taught to stop (docs/models.md#where-replies-end)"
        )
    if 4 * role.cut > 3 * replies:
        return
    idle = [group.episodes[0].reward for group in role.trained if not group.teaches]
    if 2 * len(idle) <= len(role.trained):
        return
    finding = f"{len(idle)} of {len(role.trained)} {_compared(role)} teach nothing, as"
    if 2 * role.rejected.total() > replies:
        yield (
            f"{finding} most replies are rejected ({', '.join(role.rejected)}): say in the prompt how they are to be "
            f"written, look for answers where the model writes them, or show it: {DEMONSTRATIONS}"
        )
    elif 2 * sum(reward <= 0 for reward in idle) > len(idle):
        softer = "a softer grader"
        if role.contained:
            softer += f", such as cover-exact-match, as the right answer is in {role.contained} wrong replies"
        yield (
            f"{finding} all of their replies are wrong: {DEMONSTRATIONS}; {softer}; a lower temperature in {sampling}; "
            "easier rows; more samples of a prompt"
        )
    else:
        yield (
            f"{finding} all of their replies are right: harder rows, a stricter grader, or a higher temperature in "
            f"{sampling}"
        )
