"""Samples make their own episodes; rewards, parts, lengths, searches and rejections are metrics by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scope_jax.config import JudgeSection, LossCard, SamplingSection
from scope_jax.games.ssp.options import SSPSection
from scope_jax.learner.types import Episode, RoleShare, Update
from scope_jax.play import roles, samples
from scope_jax.play.game import Game, play_step
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.samples import Sample, sample_of
from scope_jax.play.settings import SettingRecord
from scope_jax.play.step import Played, Step
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion, Row
from scope_jax.text.messages import Messages
from tests.games import harness
from tests.games.harness import sampled_turn

CFG = harness.card()
LOSS = LossCard()
SAY = Messages("Say a word.")
SOLVER = Role("solver", Agent("actor", SamplingSection(temperature=0.7)), loss=LOSS, rejections=("short", "long"))


def completion(text: str, finish: str = "stop") -> Completion:
    turn = sampled_turn(text, finish)
    row = Row(np.zeros(3, np.int32), turn.ids, np.ones(len(turn.ids), bool), turn.logprobs)
    return Completion((row,), (turn,), finish)


def sample(text: str, finish: str = "stop", role: Role = SOLVER, label: str = "solver") -> Sample:
    return sample_of(completion(text, finish), role, "7", SAY, label)


def test_a_sample_makes_its_own_episode() -> None:
    episode = sample("four").episode(1.0, parts={"right": 1.0}, text={"answer": "four"})
    assert (episode.role, episode.policy, episode.group) == ("solver", "actor", "solver/7")
    assert (episode.reward, episode.parts, episode.temperature) == (1.0, {"right": 1.0}, 0.7)
    assert episode.trained and not episode.padding and episode.finish == "stop" and episode.label == "solver"
    assert [*episode.text] == ["prompt", "turns", "answer"] and episode.text["prompt"] == "Say a word."
    (datum,) = episode.datums
    assert datum.sampled_T.tolist() == [False] * 3 + [True] * 4
    other = sample("four").episode(0.0, role="propose_x", group="g", trained=False, datums=(), shows_prompt=False)
    assert (other.role, other.group, other.label, other.trained) == ("propose_x", "g", "propose_x", False)
    assert other.datums == () and "prompt" not in other.text
    assert not sample("x", role=replace(SOLVER, loss=None)).episode(0.0).trained


def test_metrics_come_by_themselves() -> None:
    said = [sample("four"), sample("seventeen", "length"), sample("6", label="estimate")]
    episodes = [
        said[0].episode(1.0, parts={"right": 1.0}, text={"rejected": ""}),
        said[1].episode(0.5, text={"rejected": "long"}),
        said[2].episode(9.0),
        said[0].episode(5.0, padding=True),
        Episode("solver", "actor", "given", (), 7.0),
    ]
    assert samples.metrics(CFG, said, episodes, [SOLVER]) == {
        "solver/response_tokens": 6.5,
        "solver/response_length": 6.5,
        "solver/cut_off": 0.5,
        "solver/prompt_too_long": 0.0,
        "solver/reward": 0.75,
        "solver/right": 1.0,
        "solver/rejected_short": 0.0,
        "solver/rejected_long": 0.5,
        "estimate/response_tokens": 1.0,
        "estimate/response_length": 1.0,
        "estimate/cut_off": 0.0,
        "estimate/prompt_too_long": 0.0,
        "estimate/reward": 9.0,
        "estimate/rejected_short": 0.0,
        "estimate/rejected_long": 0.0,
    }


def test_searches_are_counted_by_the_role_that_may_search() -> None:
    searcher = replace(SOLVER, speaker=replace(SOLVER.agent, tools=("search",)))
    assert samples.metrics(CFG, [sample("x", role=searcher)], [], [])["solver/searches"] == 0.0
    counted = replace(searcher, searches=lambda completion: 3)
    assert samples.metrics(CFG, [sample("x", role=counted)], [], [])["solver/searches"] == 3.0
    assert "solver/searches" not in samples.metrics(CFG, [sample("x")], [], [])
    parts = [sample("x", role=searcher).episode(0.0, parts={"searches": value}) for value in (1.0, 2.0)]
    measured = samples.metrics(CFG, [sample("x", role=counted)], parts, [])
    assert measured["solver/searches"] == 1.5, "a part takes the place of what is counted of samples"


def test_policies_updates_judges_and_the_base_follow_from_roles() -> None:
    model = JudgeSection(url="http://localhost:1/v1", model="m")
    other = LossCard(clip_high=0.3)
    listed = (
        Role("questioner", Agent("actor", SamplingSection()), loss=LOSS, weight=0.5),
        Role("judge", model),
        Role("grader", Agent(BASE, SamplingSection())),
        Role("solver", Agent("second", SamplingSection()), loss=other),
        Role("verifier", Agent("actor", SamplingSection()), loss=LOSS, advantage=other),
    )
    assert roles.policies(listed) == ("actor", "second")
    assert roles.external_models(listed) == {"judge": model}
    assert roles.sample_base(listed) and not roles.sample_base(listed[:2])
    questions = RoleShare("questioner", weight=0.5)
    verdicts = RoleShare("verifier", other)
    updates = roles.updates(listed)
    assert updates == (
        Update("actor", LOSS, (questions,)),
        Update("second", other, (RoleShare("solver"),)),
        Update("actor", LOSS, (verdicts,)),
    )
    assert roles.one_update_per_policy(CFG, updates) == (Update("actor", LOSS, (questions, verdicts)), updates[1])
    with pytest.raises(TypeError, match="judge is an external model"):
        _ = listed[1].agent


def game(play: object, **fields: object) -> Game:
    return Game("ssp", SSPSection, lambda cfg: (SOLVER,), play, **fields)  # type: ignore[arg-type]


def test_a_games_own_metrics_and_those_of_its_memory_take_their_places() -> None:
    def play(step: Step) -> Played:
        assert step.roles == {"solver": SOLVER} and step.number == 4 and step.memory == {"sum": 1}
        groups = step.play("solver", [Rollout("a", SAY), Rollout("b", SAY, label="other")], samples=2)
        episodes = [one.episode(1.0) for group in groups for one in group]
        setting = SettingRecord("speed", {"v": 1}, by="card", since=0)
        return Played(episodes, outcome=5, metrics={"solver/reward": 0.25}, settings=[setting])

    def remember(cfg: object, memory: dict[str, int], outcome: int, number: int) -> tuple[dict[str, int], object]:
        return {"sum": memory["sum"] + outcome}, {"sum": float(number)}

    tools, before = harness.world(lambda now: "ab"[now.sample]), {"sum": 1}
    episodes, after, metrics = play_step(game(play, remember=remember), CFG, tools, before, 4)
    assert before == {"sum": 1} and after == {"sum": 6} and metrics["sum"] == 4.0
    assert metrics["solver/reward"] == 0.25 and metrics["other/reward"] == 1.0
    assert [one.role for one in episodes] == ["solver"] * 4 + ["speed"]
    assert [one.group for one in episodes] == ["solver/a"] * 2 + ["solver/b"] * 2 + ["speed"]
    assert tools.asked == [("solver", "a", 2), ("solver", "b", 2)]


def test_another_key_and_another_sampling() -> None:
    hot = SamplingSection(temperature=0.1, max_tokens=7)

    def play(step: Step) -> Played:
        ((one,),) = step.play("solver", [SAY], key="grounding", sampling=hot)
        assert one.temperature == 0.1 and one.label == "grounding" and one.role.name == "solver"
        return Played([one.episode(0.0)])

    tools = harness.world(lambda now: "x")
    episodes, _, metrics = play_step(game(play), CFG, tools, {}, 0)
    assert tools.asked == [("grounding", "0", 1)] and tools.options["grounding"]["max_tokens"] == 7
    assert episodes[0].role == "solver" and episodes[0].temperature == 0.1
    assert metrics["grounding/reward"] == 0.0 and "solver/reward" not in metrics
