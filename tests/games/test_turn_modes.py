"""Turns joined raw, by the chat template, or re-rendered: their tokens, and SSP in every dialect and mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scope_jax.games import GAMES
from scope_jax.play import searching
from scope_jax.play.turns import Cut, Joiner
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Continuation, Request, Restart, SamplingParams, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages
from tests.games.harness import (
    EOS,
    ITEMS,
    RESULTS,
    ROLES,
    TAGGED,
    Characters,
    Plan,
    ScriptedTools,
    card,
    episodes_of,
    example,
    in_dialect,
    plain,
    play_step,
    search_responder,
    world,
)

CODEC = Characters()
USER, ASSISTANT, TOOL, ENVIRONMENT = (chr(ROLES[name]) for name in ("user", "assistant", "tool", "environment"))
END = chr(EOS)
RESULT_ROLE = {"xml": USER, "observation": USER, "hermes": TOOL, "qwen-coder": TOOL, "function": ENVIRONMENT}


def sampled(text: str, finish: str = "stop") -> Turn:
    ids = CODEC.encode(text) + ([EOS] if finish == "eos" else [])
    return Turn("sampled", np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), text, finish)


def observed(text: str) -> Turn:
    return Turn("observation", np.zeros(1, np.int32), np.zeros(1, np.float32), text, None, True)


def shown(name: str, results: str) -> str:
    """Results inside a message of the dialect; the template of these tests adds no tag to tool messages."""
    return results if RESULT_ROLE[name] == TOOL else dialects.load(name).observation([results])


@pytest.mark.parametrize("name", TAGGED)
def test_the_tokens_between_two_turns(name):
    dialect = dialects.load(name)
    text = dialect.observation(["R"])

    def reply(mode, *turns):
        return Joiner(mode, CODEC, dialect).responder(lambda turns: text, Messages("P"))(tuple(turns))

    said = sampled("<think>t</think>\n\nI look: " + searching.written_search("a", dialect))
    assert reply("raw", said) == Continuation(CODEC.encode(f"\n{text}\n\n"), f"\n{text}\n\n")

    glue = f"{END}{RESULT_ROLE[name]}{shown(name, 'R')}{END}{ASSISTANT}"
    assert reply("chat", said) == Continuation(CODEC.encode(glue), text)
    ended = replace(sampled("no more", "eos"))
    assert reply("chat", ended) == Continuation(CODEC.encode(glue[1:]), text)  # the policy sampled the end token itself

    search = searching.written_search("a", dialect)
    start = f"{USER}P{END}{ASSISTANT}I look: {search}{END}{RESULT_ROLE[name]}{shown(name, 'R')}{END}"
    assert reply("chat-trimmed", said) == Restart(CODEC.encode(start + ASSISTANT), text)
    nudge = f"{ASSISTANT}What?{END}{USER}Go on.{END}{ASSISTANT}x{END}{RESULT_ROLE[name]}{shown(name, 'R')}{END}"
    turns = (said, observed(text), sampled("What?", "eos"), observed("Go on."), sampled("<think></think>x"))
    assert reply("chat-trimmed", *turns) == Restart(CODEC.encode(f"{start}{nudge}{ASSISTANT}"), text)


class TwoEnds(Characters):
    """A vocabulary with a second end token, which its template never writes."""

    eos_ids = (EOS, 4)


def test_an_end_token_sampled_by_the_policy_is_kept():
    joiner = Joiner("chat", TwoEnds(), dialects.load("xml"))
    ids = np.asarray([*CODEC.encode("x"), 4], np.int32)
    for finish, glue in (("eos", joiner.glue(Messages("P"), [{"role": "user", "content": "R"}])[1:]), ("stop", None)):
        said = Turn("sampled", ids, np.zeros(2, np.float32), "x", finish)
        reply = joiner.responder(lambda turns: "R", Messages("P"))((said,))
        assert reply == Continuation(glue or [EOS, *CODEC.encode(f"{USER}R{END}{ASSISTANT}")], "R")


class OtherEnd(Characters):
    """A template that ends messages with a token of its own, not with an end token of the vocabulary."""

    def encode_chat(self, messages, add_generation_prompt=True, **options):
        return [4 if id == EOS else id for id in super().encode_chat(messages, add_generation_prompt, **options)]

    def continuation(self, *messages, **options):
        return [4 if id == EOS else id for id in super().continuation(*messages, **options)]


@pytest.mark.parametrize(("stop", "kept"), [("\x04", "\x04"), ("User:", "")])
def test_a_turn_that_ended_with_a_string_has_one_end(stop: str, kept: str):
    """The string stays if it is the template's end of a message; otherwise it is dropped for the template's."""
    codec, dialect = OtherEnd(), dialects.load("xml")
    fields = {"calls": "first", "malformed": "remind", "reminder": "?"}
    respond = search_responder(lambda queries: ["R"] * len(queries), dialect, "chat", **fields)
    texts = [f"<search>a</search>{stop}", f"<search>{stop}", "<answer>b</answer>"]
    ids = Joiner("chat", codec, dialect).prompt(Messages("P"))
    params = SamplingParams(1.0, 0, 1.0, 99, ("</answer>",), codec.eos_ids, True, ends=(stop,))
    reply = Joiner("chat", codec, dialect).responder(respond, Messages("P"))
    script = ScriptedRollouts(lambda prompt, turns: texts[len(turns) // 2], codec, max_length=999)
    (completion,) = script.run([Request(ids, params, None, None, 5, reply)])
    said = f"<search>a</search>\x04{USER}{dialect.observation(['R'])}\x04{ASSISTANT}<search>\x04{USER}?\x04{ASSISTANT}"
    assert codec.decode(completion.ids_T) == said + texts[2]
    ends = [place for place, text in enumerate(said) if text == "\x04"]
    assert completion.sampled_T[ends].tolist() == [bool(kept), False] * 2


class Pairs(Characters):
    """A vocabulary of pairs of characters, so that a tag may end within a token."""

    def encode(self, text, forbid=()):
        pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
        return [sum(ord(char) << 8 * place for place, char in enumerate(pair)) for pair in pairs]

    def decode(self, ids):
        return "".join(chr(i & 255) + (chr(i >> 8) if i >> 8 else "") for i in map(int, ids))


@pytest.mark.parametrize("mode", ["raw", "chat", "chat-trimmed"])
def test_dropping_the_end_of_a_turn(mode):
    """The last kept token stays whole, and re-rendering uses its text; an end token is kept where possible."""
    joiner = Joiner(mode, Pairs(), dialects.load("xml"))

    def reply(text, end, finish="stop"):
        ids = np.asarray(Pairs().encode(text) + ([EOS] if finish == "eos" else []), np.int32)
        turn = Turn("sampled", ids, np.zeros(len(ids), np.float32), text, finish)
        answer = joiner.responder(lambda turns: Cut(end, "R"), Messages("P"))((turn,))
        assert isinstance(answer, Continuation | Restart)
        return answer

    def told(answer):
        return Pairs().decode(answer.prompt_ids if isinstance(answer, Restart) else answer.ids)

    glue = {"raw": "\nR\n\n", "chat": f"{END}{USER}R{END}{ASSISTANT}"}
    for text, end, kept, left in (("abc> and", 4, 2, "abc>"), ("ab> and", 3, 2, "ab> "), ("abc>de", 1, 1, "ab")):
        for finish in ("stop", "eos", "length"):
            answer = reply(text, end, finish)
            assert answer.kept == kept
            assert told(answer) == glue.get(mode, f"{USER}P{END}{ASSISTANT}{left}{END}{USER}R{END}{ASSISTANT}")
    assert reply("abc>", 4).kept is None and reply("ab> ", 3).kept is None  # nothing follows the token
    ended = reply("abc>", 4, "eos")
    assert ended.kept == (2 if mode == "raw" else None)
    assert mode != "chat" or told(ended) == glue["chat"][1:]  # the policy has ended its message itself


def test_the_end_of_an_episode_is_the_end_in_every_mode():
    for mode in ("raw", "chat", "chat-trimmed"):
        assert (
            Joiner(mode, CODEC, dialects.load("xml")).responder(lambda turns: None, Messages("P"))((sampled("x"),))
            is None
        )


class NoToolRole(Characters):
    """A template that silently ignores tool messages."""

    def encode_chat(self, messages, add_generation_prompt=True, **options):
        return super().encode_chat([m for m in messages if m["role"] != "tool"], add_generation_prompt, **options)


def test_a_template_without_the_role_of_results_gives_one_clear_error():
    Joiner("raw", NoToolRole(), dialects.load("hermes"))
    Joiner("chat", NoToolRole(), dialects.load("xml"))
    with pytest.raises(ValueError, match=r"leaves out messages of role 'tool'.*choose another model\.dialect"):
        Joiner("chat", NoToolRole(), dialects.load("hermes"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>a</think>\n\nb", "b"),
        ("a</think>b", "b"),  # opened by the template
        ("<think>a</think>b<think>c</think>\nd", "d"),
        ("b", "b"),
        ("<think>a", "<think>a"),
        ("<think>a</think>", ""),
    ],
)
def test_a_turn_without_its_thought(text, kept):
    assert parsing.without_thought(text) == kept


# ------------------------------------------------------------------------------------------------- SSP in every mode
def played(name: str, mode: str):
    cfg = card()
    model = cfg.model.model_copy(update={"dialect": name, "turns": mode})
    tools: ScriptedTools = world(in_dialect(name, Plan()), dialect=name, turns=mode)
    episodes, _, metrics = play_step(
        GAMES["ssp"], cfg.model_copy(update={"model": model}), tools, {"pool": []}, ITEMS, 0
    )
    return tools, episodes, metrics


@pytest.fixture(scope="module")
def golden():
    """The step with the xml dialect and raw turns."""
    return played("xml", "raw")


@pytest.mark.parametrize("mode", ["raw", "chat", "chat-trimmed"])
@pytest.mark.parametrize("name", TAGGED)
def test_the_game_is_the_same_in_every_dialect_and_mode(golden, name, mode):
    tools, episodes, metrics = played(name, mode)
    same = ("role", "group", "reward", "parts", "trained")
    assert [{k: e[k] for k in same} for e in plain(episodes)] == [{k: e[k] for k in same} for e in plain(golden[1])]
    assert tools.searched == golden[0].searched
    unequal = {k for k, v in metrics.items() if v != golden[2][k]}
    assert unequal <= {f"{role}/response_{what}" for role in ("solver", "proposer") for what in ("tokens", "length")}
    prompt = tools.prompts["solver", "0"]
    dialect = dialects.load(name)
    assert example(dialect) in prompt and dialect.place in prompt


@pytest.mark.parametrize("name", TAGGED)
def test_rows_of_the_three_modes(name):
    dialect = dialects.load(name)
    first, last = (
        f"<think>a</think> {searching.written_search('Seine', dialect)}",
        "<question>Which capital lies on the river Seine?</question>",
    )
    results = shown(name, RESULTS["Seine"])

    def rows(mode):
        proposer = episodes_of(played(name, mode)[1], "proposer")[0]
        text = proposer.text["prompt"]
        assert [turn["text"] for turn in proposer.text["turns"]][::2] == [first, last]
        return text, [(CODEC.decode(d.ids_T), CODEC.decode(d.ids_T[d.sampled_T])) for d in proposer.datums]

    text, found = rows("raw")
    assert found == [(f"{text}{first}\n{dialect.observation([RESULTS['Seine']])}\n\n{last}", first + last)]
    text, found = rows("chat")
    start = CODEC.decode(CODEC.encode_chat([{"role": "user", "content": text}], tools=searching.declared(dialect)))
    later = f"{END}{RESULT_ROLE[name]}{results}{END}{ASSISTANT}"
    assert found == [(f"{start}{first}{later}{last}", first + last)]
    text, found = rows("chat-trimmed")
    trimmed = f" {searching.written_search('Seine', dialect)}"  # the text after </think>
    assert found == [(start + first, first), (f"{start}{trimmed}{later}{last}", last)]
