"""Rollouts in which agents take turns: same bits whatever the slots, the delays, the cache and the company."""

import dataclasses
import time

import numpy as np
import pytest

from scope_jax.rollouts.types import Continuation, Restart, RolloutError
from tests.rollouts.world import ENGINE, bits, make_engine, make_paged, make_rollouts, request, trainer_logprobs

STOPS = tuple(map(chr, range(97, 123)))


class Game:
    """Two agents, alice and bob, of which each hears the other's last turn; now and then both, or a new row.

    delay: seconds that each decision takes, by number. weights: by agent.
    """

    immediate = False

    def __init__(self, name, rounds=3, delay=lambda number: 0.0, weights=None, limits=None):
        self.name, self.rounds, self.delay = name, rounds, delay
        self.weights = weights or {}
        self.limits = limits or {}
        self.asked = []
        self.number = 0

    def request(self, agent):
        key = np.asarray([self.name, {"alice": 1, "bob": 2, "carol": 3}[agent]], np.uint32)
        tools = self._tool if agent == "carol" else None
        ids = list(f"{agent} of {self.name}".encode())
        plain = request(ids, key=None, max_turns=4, respond=tools, stop=STOPS, max_tokens=12)
        return dataclasses.replace(
            plain,
            key=key,
            weights=self.weights.get(agent, ""),
            max_response_tokens=self.limits.get(agent),
            name=("role", str(self.name), 0, agent),
        )

    def _tool(self, turns):
        """A tool that carol calls once for each second of her turns."""
        sampled = [turn for turn in turns if turn.kind == "sampled"]
        return Continuation(list(f"<{len(sampled)}>".encode()), "") if len(sampled) % 2 else None

    def advance(self, spoken):
        time.sleep(self.delay(self.number))
        self.number += 1
        assert set(spoken) == set(self.asked)
        heard = {name: said.turns[-1].text if said.turns else "" for name, said in spoken.items()}
        plan = [("alice",), ("bob",), ("alice",), ("alice",), ("alice", "bob", "carol"), ("carol",), ("bob",)]
        if self.number > min(len(plan), self.rounds + 4):
            return {}
        self.asked = plan[self.number - 1]
        moves = {}
        for name in self.asked:
            if not self._has(name):
                moves[name] = self.request(name)
                self.limits.setdefault(name, None)
            elif self.number == 4:
                moves[name] = Restart(list(f"anew {name} {len(heard)}".encode()), "anew")
            else:
                moves[name] = Continuation(list(" ".join(heard.values()).encode()[:20] + b"."), "heard")
        self.known = {*getattr(self, "known", ()), *self.asked}
        return moves

    def _has(self, name):
        return name in getattr(self, "known", ())


def play(rollouts, games):
    interactions = [rollouts.interaction(game) for game in games]
    rollouts.interact(interactions, "")
    assert all(each.over for each in interactions)
    return [{name: (bits(said), prompts(said)) for name, said in each.completions().items()} for each in interactions]


def prompts(completion):
    return [row.prompt_ids.tolist() for row in completion.rows]


def check(row, params):
    """The log-probs of sampled tokens are the learner's."""
    learner = np.where(row.sampled_T, trainer_logprobs(params, row), 0)
    np.testing.assert_allclose(row.logprobs_T, learner, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def alone(rollouts):
    return [play(rollouts, [Game(number)])[0] for number in range(12)]


def test_rows_of_an_agent_are_its_own_turns(rollouts, params):
    (interaction,) = [rollouts.interaction(Game(3))]
    rollouts.interact([interaction], "")
    said = interaction.completions()
    assert set(said) == {"alice", "bob", "carol"}
    assert len(said["alice"].rows) == 2 and len(said["bob"].rows) == 1  # alice began anew once
    for completion in said.values():
        assert sum(turn.kind == "sampled" for turn in completion.turns) >= 2
        for row in completion.rows:
            check(row, params)


def tokens(played):
    """Ids of every row: those of engines of other sizes differ from these by nothing, log-probs by rounding."""
    return [{name: (said[0][0], said[1]) for name, said in each.items()} for each in played]


class At(Game):
    """One that the decode loop asks itself, in every other turn or always."""

    def __init__(self, name, always):
        super().__init__(name)
        self._always = always

    @property
    def immediate(self):
        return self._always or self.number % 2 == 0


@pytest.mark.parametrize(
    ("ahead", "always"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
    ],
)
def test_same_bits_where_no_thread_is_asked(engine, params, alone, always, ahead):
    """Also with a small paged cache, in which observations are appended while others are set aside."""
    assert play(make_rollouts(engine, params, ahead=ahead), [At(name, always) for name in range(12)]) == alone
    small = make_rollouts(make_paged(ENGINE, pages=14), params, ahead=ahead)
    assert tokens(play(small, [At(name, always) for name in range(12)])) == tokens(alone)


class Once:
    """One request, which the decode loop asks for itself."""

    immediate = True

    def __init__(self, one):
        self.one = one

    def advance(self, spoken):
        return {} if spoken else {"agent": self.one}


def prefills(engine, monkeypatch):
    """The beginnings of prompts that are computed, as they come."""
    counted = []
    append = engine._append_chunks

    def watched(params, state, drawn):
        counted.extend(chunk for chunks in drawn for chunk in chunks if chunk.start == 0)
        append(params, state, drawn)

    monkeypatch.setattr(engine, "_append_chunks", watched)
    return counted


def test_single_requests_are_what_run_gives_and_share_their_prefill(engine, params, monkeypatch):
    """More than there are slots, some of which fit into no slot, or have a tool."""
    rollouts = make_rollouts(engine, params)
    carol = Game(1).request("carol")
    asked = [request(f"{g}: a prompt", key=s, group=f"{g}") for g in range(3) for s in range(6)]
    asked += [dataclasses.replace(carol, group="c"), request("x" * 170, key=7)]
    expected = [bits(completion) for completion in rollouts.run(asked)]
    rollouts.clear()  # the prompts that are kept
    counted = prefills(engine, monkeypatch)
    interactions = [rollouts.interaction(Once(one)) for one in asked]
    rollouts.interact(interactions, "")
    assert [bits(each.completions()["agent"]) for each in interactions] == expected
    assert len(counted) == 4  # the last has no room


@pytest.mark.parametrize("slots", [2, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cache", [pytest.param("dense", marks=pytest.mark.slow), "paged"])
def test_same_bits_with_any_delays_and_company(params, alone, slots, cache):
    config = dataclasses.replace(ENGINE, slots=slots)
    engine = make_engine(config) if cache == "dense" else make_paged(config)
    each = make_rollouts(engine, params)
    one_by_one = [play(each, [Game(name)])[0] for name in range(6)]
    assert tokens(one_by_one) == tokens(alone[:6])
    for ahead in (False, True):
        rollouts = make_rollouts(engine, params, ahead=ahead)
        late = np.random.default_rng(slots).uniform(0, 0.05, size=(6, 12))
        games = [Game(name, delay=late[name].__getitem__) for name in range(6)]
        assert play(rollouts, games) == one_by_one


@pytest.mark.slow
def test_a_small_paged_cache_changes_nothing(params):
    games = range(12)
    small, large = (make_rollouts(make_paged(ENGINE, pages=pages), params) for pages in (14, None))
    assert play(small, [Game(name) for name in games]) == play(large, [Game(name) for name in games])


def test_more_interactions_than_slots_do_not_block(params):
    engine = make_paged(dataclasses.replace(ENGINE, slots=2))
    assert len(play(make_rollouts(engine, params), [Game(name) for name in range(16)])) == 16


def test_weights_take_turns(engine, params, alone):
    """Bob has weights of his own: alice waits for him, and he for her, in rounds of the two weights."""
    import jax

    other = jax.tree.map(lambda x: x * 1.01, params)
    games = [Game(name, weights={"alice": "a", "bob": "b", "carol": "a"}) for name in range(6)]
    rollouts = make_rollouts(engine, params)
    interactions = [rollouts.interaction(game) for game in games]
    rounds = []
    name, weights = "a", {"a": params, "b": other}
    while not all(each.over for each in interactions):
        rollouts.load_params(weights[name])
        rollouts.interact(interactions, name)
        rounds.append(name)
        wanted = set().union(*(each.wanted for each in interactions))
        assert name not in wanted
        name = min(wanted, default="")
    assert rounds[:4] == ["a", "b", "a", "b"]
    for each, before in zip(interactions, alone, strict=False):
        said = each.completions()
        first = said["alice"].turns[0]
        assert first.ids.tobytes() in before["alice"][0][0]
        for agent, completion in said.items():
            own = other if agent == "bob" else params
            for row in completion.rows:
                check(row, own)


def test_an_agent_without_room_is_over(rollouts):
    """Bob's row has no room after his first turn: he is told to be over, and the others go on."""
    seen = {}

    class Watched(Game):
        def advance(self, spoken):
            seen.setdefault("over", []).extend(name for name, said in spoken.items() if said.over)
            return super().advance(spoken)

    interaction = rollouts.interaction(Watched(5, limits={"bob": 12}))
    rollouts.interact([interaction], "")
    assert seen["over"].count("bob") >= 1 and seen["over"][-1] == "bob"
    assert interaction.completions()["bob"].finish_reason in ("length", "stop")


def test_a_driver_that_fails_ends_the_run(rollouts):
    class Broken(Game):
        def advance(self, spoken):
            if spoken:
                raise KeyError("nothing")
            return super().advance(spoken)

    with pytest.raises(KeyError, match="nothing"):
        rollouts.interact([rollouts.interaction(Broken(1))], "")


def test_a_second_request_for_a_row_is_an_error(rollouts):
    class Twice(Game):
        def advance(self, spoken):
            return {"alice": self.request("alice")}

    with pytest.raises(RolloutError, match="a row already"):
        rollouts.interact([rollouts.interaction(Twice(1))], "")
