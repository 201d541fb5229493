"""Signs that a policy may have collapsed, measured alike for every role of every game from the episodes of a step.

They are how long replies are, how many of them a limit cut, how many pairs of replies to one prompt are identical, how
many episodes are valid and trained, and why others were rejected. One more, the entropy of the tokens' distributions,
is a metric of the learner. Episodes that nobody sampled (`Episode.finish` is ""), such as given answers, have none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.tool_turns import UNFINISHED

LENGTHS = ("response_tokens", "response_length", "cut_off", "prompt_too_long")  # of `searching.lengths`
REJECTED = "rejected_"  # before the reason, in the name of the share of episodes that it rejected
LONGEST = 40  # characters of a reason in a name
_NO_WORD = re.compile(r"\W+")
SIGNS = (*LENGTHS, "identical_pairs", "valid", "trained")
ESTIMATED = ("response_tokens", "cut_off", "identical_pairs", "valid", "reward")  # those with a standard error
Estimate = tuple[float, float | None]  # a mean and its standard error, None if there is none
Grouped = list[tuple[str, float]]  # values, each with the group that it belongs to


def identical_pairs(texts: Sequence[str]) -> float:
    """Share of the pairs of texts (i < j) that are equal apart from white space: 0 if all differ, 1 if none does.

    Raises ValueError for fewer than two texts, which make no pair.
    """
    if len(texts) < 2:
        raise ValueError("a share of pairs needs at least two texts")
    counts = Counter(" ".join(text.split()) for text in texts)
    return sum(n * (n - 1) for n in counts.values()) / (len(texts) * (len(texts) - 1))


def clustered(values: Grouped) -> Estimate:
    """The mean x̄ of at least one value, and its standard error if whole groups are drawn, of at least two:

    √(G/(G−1) · Σ_g (Σ_{i∈g} (x_i − x̄))²) / n, which for groups of one value is s/√n.
    """
    middle = mean([value for _, value in values])
    sums: dict[str, float] = {}
    for group, value in values:
        sums[group] = sums.get(group, 0.0) + value - middle
    if len(sums) < 2:
        return middle, None
    spread = sum(each**2 for each in sums.values()) * len(sums) / (len(sums) - 1)
    return middle, math.sqrt(spread) / len(values)


def with_signs(metrics: Metrics, episodes: Iterable[Episode]) -> Metrics:
    """The metrics of a step, and those signs of its episodes that are not among them, as `<role>/<sign>`.

    A game's own value stays as it is: it may be about more than the episodes. `<role>/<sign>_se` is the standard error
    of a mean that is that of the episodes; the game's `<role>/reward` has one too.
    """
    found = dict(metrics)
    for name, (value, error) in measured(episodes).items():
        if name in found:
            if not math.isclose(found[name], value, rel_tol=1e-9, abs_tol=1e-12):
                continue
        elif name.endswith("/reward"):
            continue
        found[name] = value
        if error is not None and name.endswith(ESTIMATED):
            found[f"{name}_se"] = error
    return found


def measured(episodes: Iterable[Episode]) -> dict[str, Estimate]:
    """By `<role>/<sign>`; of episodes that fill slots (`Episode.padding`) there is none."""
    of_role: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.finish and not episode.padding:
            of_role.setdefault(episode.role, []).append(episode)
    return {f"{role}/{sign}": value for role, own in of_role.items() for sign, value in _signs(own).items()}


def _signs(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """Those of one role; a sign without values is left out."""
    values: dict[str, Grouped] = {}

    def add(sign: str, episode: Episode, value: float) -> None:
        values.setdefault(sign, []).append((episode.group, value))

    replies: dict[str, list[str]] = {}
    for episode in episodes:
        add("reward", episode, episode.reward)
        add("trained", episode, float(episode.trained))
        if "valid" in episode.parts or "rejected" in episode.text:
            add("valid", episode, episode.parts.get("valid", float(not episode.text.get("rejected"))))
        if not episode.datums:  # what was sampled for it is not kept
            continue
        tokens = sum(int(datum.sampled_T.sum()) for datum in episode.datums)
        add("prompt_too_long", episode, float(tokens == 0))
        if tokens:
            length = sum(len(d.ids_T) - int(d.sampled_T.argmax()) for d in episode.datums if d.sampled_T.any())
            add("response_tokens", episode, float(tokens))
            add("response_length", episode, float(length))
            add("cut_off", episode, float(episode.finish in UNFINISHED))
            turns = episode.text.get("turns", ())
            replies.setdefault(episode.group, []).append(
                "\n".join(turn["text"] for turn in turns if turn["kind"] == "sampled")
            )
    for group, texts in replies.items():
        if len(texts) > 1:
            values.setdefault("identical_pairs", []).append((group, identical_pairs(texts)))
    told = (episode.text.get("rejected") for episode in episodes)
    reasons = Counter(_NO_WORD.sub("_", reason)[:LONGEST] for reason in told if isinstance(reason, str) and reason)
    shares = {f"{REJECTED}{name}": (n / len(episodes), None) for name, n in sorted(reasons.items())}
    return {sign: clustered(each) for sign, each in values.items()} | shares
