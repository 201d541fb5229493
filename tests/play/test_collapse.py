"""Signs of collapse of episodes few enough to count by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scope_jax.learner.types import Datum, Episode
from scope_jax.play.collapse import ESTIMATED, SIGNS, clustered, identical_pairs, measured, with_signs


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (["a", "b", "c"], 0.0),
        (["a", "a ", "\na", "b"], 3 / 6),  # three equal texts make three pairs of six
        (["x y", "x  y", "u", "u"], 2 / 6),
        (["a", "A"], 0.0),
        (["", " "], 1.0),
    ],
)
def test_share_of_identical_pairs(texts: list[str], share: float) -> None:
    assert identical_pairs(texts) == pytest.approx(share)


def test_one_text_makes_no_pair() -> None:
    with pytest.raises(ValueError, match="at least two texts"):
        identical_pairs(["a"])


def test_the_standard_error_is_that_of_groups() -> None:
    alone = clustered([("a", 1.0), ("b", 2.0), ("c", 6.0)])
    assert alone == (3.0, pytest.approx(math.sqrt(7) / math.sqrt(3)))  # s² = (4 + 1 + 9) / 2
    twice = clustered([(group, value) for group, value in (("a", 1.0), ("b", 2.0), ("c", 6.0)) for _ in range(2)])
    assert twice == (3.0, pytest.approx(alone[1]))  # a repeated value tells nothing new
    assert clustered([("a", 1.0), ("a", 2.0)]) == (1.5, None)


def reply(group: str, text: str, tokens: int = 2, finish: str = "eos", rejected: str | None = "") -> Episode:
    """Sampled after a prompt of 3 tokens, with a result of 4 tokens after the first sampled one."""
    sampled = np.array([False] * 3 + [True] + [False] * 4 + [True] * (tokens - 1)) if tokens else np.array([False] * 3)
    datum = Datum(np.zeros(len(sampled), np.int32), sampled, np.zeros(len(sampled), np.float32))
    turns = [{"kind": "sampled", "text": text}, {"kind": "observation", "text": group}] if tokens else []
    told = {"turns": turns} | ({} if rejected is None else {"rejected": rejected})
    return Episode("solver", "actor", group, (datum,), float(tokens), text=told, finish=finish)


def test_the_signs_of_a_role() -> None:
    episodes = [
        reply("a", "x y"),
        reply("a", "x  y", 4, rejected="parse"),
        replace(reply("a", "z", 6, "length", rejected="parse"), trained=False),
        reply("b", "x y", 8, "overflow"),
        reply("c", "", 0, "overflow", rejected="prompt_too_long"),
    ]
    found = measured(episodes)
    values = {name.removeprefix("solver/"): value for name, (value, _) in found.items()}
    assert values == pytest.approx(
        {
            "reward": 4.0,
            "trained": 0.8,
            "valid": 0.4,
            "prompt_too_long": 0.2,
            "response_tokens": 5.0,
            "response_length": 9.0,  # and four of the result
            "cut_off": 0.5,
            "identical_pairs": 1 / 3,  # of the three in group a
            "rejected_parse": 0.4,
            "rejected_prompt_too_long": 0.2,
        }
    )
    assert found["solver/response_tokens"][1] == pytest.approx(math.sqrt(2 * (3**2 + 3**2)) / 4)
    assert found["solver/identical_pairs"][1] is None


def test_what_nobody_sampled_and_what_fills_slots_has_no_signs() -> None:
    given = replace(reply("a", "x"), finish="")
    padding = replace(reply("a", "x"), padding=True, trained=False)
    assert measured([given, padding]) == {}
    between = replace(reply("a", "x", rejected=None), datums=())  # SCORE's evaluator between its updates
    assert measured([between]) == {"solver/reward": (2.0, None), "solver/trained": (1.0, None)}


def test_a_games_own_values_stay() -> None:
    episodes = [reply("a", "x", 2), reply("b", "y", 4, rejected="parse")]
    found = with_signs({"solver/valid": 0.25, "solver/reward": 3.0, "loss": 1.0}, episodes)
    assert found["solver/valid"] == 0.25 and "solver/valid_se" not in found  # of more than these episodes
    assert found["solver/reward_se"] == pytest.approx(1.0) and found["solver/response_tokens"] == 3.0
    assert "solver/reward" not in with_signs({}, episodes) and found["loss"] == 1.0
    assert {name for name in found if "rejected_" not in name} - {"loss", "solver/reward"} <= {
        f"solver/{sign}" for sign in SIGNS
    } | {f"solver/{sign}_se" for sign in ESTIMATED}


def test_episodes_without_a_reason_field_are_neither_valid_nor_invalid() -> None:
    assert "solver/valid" not in measured([reply("a", "x", rejected=None)])
    parts = replace(reply("a", "x", rejected=None), parts={"valid": 1.0})
    assert measured([parts])["solver/valid"] == (1.0, None)
