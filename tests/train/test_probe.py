"""`check --probe`: counts of a step's episodes by hand, what helps, and first steps on Atlas, whose replies are those
of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config import LossCard, SamplingSection
from scope_jax.errors import UserError
from scope_jax.games import game_of, load_card
from scope_jax.learner.types import Datum, Episode, RoleShare, Update
from scope_jax.play.game import play_step
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.report import probe as report
from scope_jax.run.assemble import assemble
from scope_jax.run.probing import fewer, probe, probed_roles
from tests.train import runs

CARD = LossCard(advantage="group-mean", kl="none")
SOLVER = Role("solver", Agent("actor", SamplingSection()), loss=CARD, table="game.solver")


def episode(group: str, reward: float, **fields: Any) -> Episode:
    return replace(Episode("solver", "actor", group, (), reward, finish="eos"), **fields)


def counted(episodes: list[Episode], card: LossCard = CARD) -> tuple[dict[str, Any], list[str]]:
    """(counts of the solver, what helps)."""
    roles = probed_roles(episodes, (Update("actor", card, (RoleShare("solver"),)),), {})
    plain = report.plain(roles, (SOLVER,))
    return plain["roles"]["solver"], plain["helps"]


def test_counts_by_hand() -> None:
    """Three groups: one of differing rewards, one all wrong, one all right; a group that is not trained, padding, and
    what nobody sampled."""
    credit = Datum(*(np.ones(1, kind) for kind in (np.int32, bool, np.float32)), credit_T=np.ones(1, np.float32))
    counts, helps = counted(
        [
            episode("a", 1.0, text={"prediction": "x"}),
            episode("a", 0.0, text={"prediction": None}),
            episode("b", 0.0, finish="length", parts={"answered": 0.0}, text={"prediction": "", "answers": ["Nile"]}),
            episode("b", 0.0, text={"rejected": "too long"}, finish="overflow"),
            episode("c", 0.5, text={"rejected": ""}),
            episode("c", 0.5, parts={"valid": 1.0}),
            episode(
                "d", -1.0, parts={"valid": 0.0}, trained=False, text={"prediction": "the Nile", "answers": ["Nile"]}
            ),
            episode("e", 9.0, padding=True),
            episode("f", 9.0, finish=""),
            episode("g", 2.0, datums=(credit,)),
            episode("g", 2.0),
        ]
    )
    assert counts == {
        "replies": 9,
        "reward": pytest.approx((1 + 0 + 0 + 0 + 0.5 + 0.5 - 1 + 2 + 2) / 9),
        "lowest_reward": -1.0,
        "highest_reward": 2.0,
        "rewarded": 5,
        "cut": 2,
        "rejected": {"no answer": 2, "too long": 1, "not valid": 1},
        "wrong_but_contained": 1,
        "groups": 4,
        "groups_with_gradient": 2,
    }
    assert helps == []


def group(name: str, rewards: str, **fields: Any) -> list[Episode]:
    return [episode(name, float(reward), **fields) for reward in rewards]


HELPS = {
    "all wrong": (
        [*group("a", "0000"), *group("b", "0000"), *group("c", "0100")],
        "all of their replies are wrong: dem",
    ),
    "all right": ([*group("a", "1111"), *group("b", "1111")], "all of their replies are right: harder rows"),
    "unread": ([*group("a", "0000", text={"prediction": None})], "most replies are rejected (no answer): say in the"),
    "cut": (
        [*group("a", "0011", finish="length")],
        "most replies are cut: raise max_tokens and max_response_tokens of ",
    ),
}


@pytest.mark.parametrize("case", HELPS)
def test_what_is_seen_chooses_what_helps(case: str) -> None:
    episodes, words = HELPS[case]
    _, helps = counted(episodes)
    assert len(helps) == 1 and helps[0].startswith("solver: ") and words in helps[0]
    if case != "unread":
        assert "game.solver.sampling" in helps[0]


def test_right_answers_in_wrong_replies_ask_for_a_softer_grader() -> None:
    (sentence,) = counted(group("a", "000", text={"prediction": "It is the Nile.", "answers": ["Nile", "the Nile"]}))[1]
    assert "a softer grader, such as cover-exact-match, as the right answer is in 3 wrong replies" in sentence


def test_nearly_all_cut_hides_the_rest_and_half_of_them_do_not() -> None:
    wrong, cut = group("a", "00000"), group("a", "0000000", finish="length")
    assert [words[:20] for words in counted([*cut, *wrong])[1]] == ["solver: most replies", "solver: 1 of 1 group"]
    assert len(counted([*cut, *cut, *cut, *wrong])[1]) == 1


def test_groups_that_teach_and_other_teachers_need_no_help() -> None:
    assert counted([*group("a", "01"), *group("b", "00")])[1] == []
    teacher = LossCard(advantage="none", kl="none", teacher="k2")
    roles = probed_roles(group("a", "00"), (Update("actor", teacher, (RoleShare("solver"),)),), {})
    assert report.advice(roles, (SOLVER,)) == []
    assert "it learns from a teacher" in [*report.lines(roles, (SOLVER,), 1)][-1]
    untrained = probed_roles(group("a", "00", trained=False), (), {})
    assert "not trained in this step" in [*report.lines(untrained, (SOLVER,), 1)][-1]


def test_a_group_is_shown_with_its_best_and_its_worst_reply() -> None:
    def said(reward: float, text: str, prediction: str | None) -> Episode:
        turns = [{"kind": "sampled", "text": text}, {"kind": "observation", "text": "unseen"}]
        about = {"prompt": "1 +\n1?" + " x" * 400, "turns": turns, "prediction": prediction, "answers": ["2", "two"]}
        return episode("a", reward, text=about)

    roles = probed_roles([said(0.5, "it is 3", "3"), said(1.0, "2", "2"), said(0.0, "", None)], (), {})
    first, prompt, answers, best, worst, *_ = report.lines(roles, (SOLVER,), 1)
    assert first == "probe  solver: rewards 0.5 1 0"
    assert prompt.startswith("       | prompt: 1 + 1? x x") and "[…]" in prompt and len(prompt) < 450
    assert answers == "       | answers: 2 | two"
    assert best == "       | reward 1: 2  (ended by eos)"
    assert worst == "       | reward 0: (nothing)  (ended by eos; no answer)"


def test_steps_have_fewer_prompts_whatever_counts_them() -> None:
    for name, tables in (
        ("rlvr", {"train": "batch_size"}),
        ("r_zero", {"r_zero": "challenger_batch solver_batch"}),
        ("spiral", {"spiral": "turns"}),
    ):
        cfg = load_card(f"{name}/atlas", ())
        for prompts in (2, 10_000):
            smaller = fewer(cfg, game_of(cfg), prompts)
            for table, keys in tables.items():
                for key in keys.split():
                    value = getattr(getattr(cfg, table), key)
                    assert getattr(getattr(smaller, table), key) == min(prompts, value) and value > 2


# ----------------------------------------------------------------------------------------------------------- on Atlas
def test_the_replies_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups of the first two prompts of its first step; nothing is written beside the card."""
    monkeypatch.chdir(tmp_path)
    sets = ["train.batch_size=4", "rlvr.samples=4", "rollout.slots=16"]
    cfg = load_card("rlvr/atlas", sets)
    (role,) = probe(cfg, 2, lambda said: None, lambda name, done, total: None)
    assert [*tmp_path.iterdir()] == []
    trainer = assemble(cfg, tmp_path / "run")
    world = trainer.world
    try:
        states, memory, _ = trainer.start(None)
        world.sampler.publish(states)
        episodes, _, _ = play_step(world.game, cfg, world.tools(0), memory["game"], 0)
    finally:
        world.close()
    first = episodes[:8]
    assert [one.text for one in role.episodes] == [one.text for one in first]
    assert [one.reward for one in role.episodes] == [one.reward for one in first]
    for ours, theirs in zip(role.episodes, first, strict=True):
        assert ours.datums[0].logprobs_T.tobytes() == theirs.datums[0].logprobs_T.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("game", "roles"), [("ssp", {"proposer"}), ("spiral", {"first", "second"})])
def test_other_games_are_probed(game: str, roles: set[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", f"{game}/atlas", "--probe", "--prompts", "2", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["wrong"] == 0 and found["game"] and roles <= set(found["probe"]["roles"])
    assert all(counts["replies"] > 0 for counts in found["probe"]["roles"].values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["sft/atlas", "--probe"], "sft samples nothing, as its answers are given in"),
        (["dpo/atlas", "--probe"], "dpo samples nothing, as its answers are given in"),
        (["rlvr/atlas", "--prompts", "3"], "--prompts is for --probe; give both."),
    ],
)
def test_what_cannot_be_probed_is_a_sentence(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["check", *options])
    assert result.exit_code == 2 and words in result.output and len(result.output.splitlines()) == 1


def test_a_step_that_samples_nothing_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(
        "from scope_jax.config import LossCard, SamplingSection, Section\n"
        "from scope_jax.play.game import Game\n"
        "from scope_jax.play.roles import Role\n"
        "from scope_jax.play.rollouts import Agent\n"
        "from scope_jax.play.step import Played\n"
        "def roles(cfg):\n"
        "    return (Role('solver', Agent('actor', SamplingSection()), loss=LossCard()),)\n"
        "GAME = Game('silent', Section, roles, lambda step: Played([]), source=lambda cfg: None)\n"
    )
    text = (runs.ROOT / "configs" / "rlvr" / "atlas.toml").read_text(encoding="utf-8").partition("[data]")[0]
    card = tmp_path / "silent.toml"
    card.write_text(text.replace('"rlvr"', '"silent.py"') + "[train]\nsteps = 1\n", encoding="utf-8")
    cfg = load_card(card, ())
    with pytest.raises(UserError, match="the first step of SILENT samples nothing"):
        probe(cfg, 2, lambda said: None, lambda name, done, total: None)
