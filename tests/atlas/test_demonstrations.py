"""Demonstrations: which tokens are spoken, whose facts they show, and what exchanging names does."""

from __future__ import annotations

import numpy as np
import pytest

from scope_jax.atlas import warmup
from scope_jax.atlas.demonstrations import Habits, exchanged, name_ids, token_row
from scope_jax.text.parsing import first, labelled_answer, well_formed

KINDS = [("solve", 1), ("solve", 2), ("propose", 1), ("propose", 2), ("read", 1), ("read", 2)]


@pytest.mark.parametrize(("kind", "hops"), KINDS)
def test_only_what_the_policy_says_is_spoken(trained, tokenizer, kind: str, hops: int) -> None:
    for _ in range(20):
        script = getattr(trained, kind)(hops)
        row = token_row(script, tokenizer)
        spoken = "".join(text for text, said in script.parts if said) + ("<|im_end|>" if script.ends else "")
        forced = "".join(text for text, said in script.parts if not said)
        assert tokenizer.decode(row.ids_T[row.sampled_T].tolist()) == spoken
        assert tokenizer.decode(row.ids_T[~row.sampled_T].tolist()).endswith("<|im_start|>assistant\n" + forced)
        assert script.message in tokenizer.decode(row.ids_T[~row.sampled_T].tolist())
        assert len(row.ids_T) <= (448 if kind == "read" else 400)
        assert not row.logprobs_T.any()


def test_roles_speak_the_games_formats(trained) -> None:
    for hops in (1, 2):
        solver, proposer, reader = trained.solve(hops), trained.propose(hops), trained.read(hops)
        said = [text for text, spoken in solver.parts if spoken]
        assert len(said) == hops + 1
        assert all(well_formed(text, ("think", "search", "answer")) for text in said)
        assert first(said, "answer")
        asked = [text for text, spoken in proposer.parts if spoken]
        question = first(asked, "question")
        assert question is not None and question.count(" of ") == hops
        answer = proposer.message.rsplit(" ", 1)[-1]
        assert answer not in question.removesuffix("?").split()
        assert labelled_answer(reader.parts[0][0]) in reader.message


def test_true_world_rows_show_no_held_out_entity_in_what_is_said(trained, world) -> None:
    habits = warmup.HABITS
    for kind, hops in KINDS:
        for _ in range(60):
            script = getattr(trained, kind)(hops) if kind == "read" else getattr(trained, kind)(hops, habits)
            question = script.message.splitlines()[-1]
            said = " ".join(text for text, spoken in script.parts if spoken)
            words = {word.strip(".?:") for word in f"{question} {said}".split()}
            assert not words & world.held_out


def test_habits_come_as_often_as_they_say(trained) -> None:
    always = Habits(sure=frozenset(), guess_sure=0.0, guess=1.0, half_way=0.0, unread=1.0)
    never = Habits(sure=frozenset(), guess_sure=1.0, guess=0.0, half_way=1.0, unread=0.0)
    assert all(len(trained.solve(2, always).parts) == 1 for _ in range(10))
    assert all(len(trained.propose(2, always).parts) == 1 for _ in range(10))
    for _ in range(10):
        searched = trained.solve(2, never).parts
        assert [spoken for _, spoken in searched] == [True, False, True]  # one search for a two-hop question
        assert len(trained.propose(2, never).parts) == 5


def test_exchanged_names_keep_the_structure(trained, tokenizer, world) -> None:
    names_N = name_ids(world, tokenizer)
    row = token_row(trained.solve(2), tokenizer)
    other = exchanged(row, names_N, tokenizer.vocab_size, np.random.default_rng(0))
    is_name = np.isin(row.ids_T, names_N)
    assert (other.ids_T[~is_name] == row.ids_T[~is_name]).all()
    assert np.isin(other.ids_T[is_name], names_N).all()
    assert (other.ids_T[is_name] != row.ids_T[is_name]).mean() > 0.9
    pairs = set(zip(row.ids_T.tolist(), other.ids_T.tolist(), strict=True))
    assert len(pairs) == len(set(row.ids_T.tolist())) == len(set(other.ids_T.tolist()))  # one to one
    assert (other.sampled_T == row.sampled_T).all()


def test_a_name_of_two_tokens_is_an_error(tokenizer, world) -> None:
    from dataclasses import replace

    from scope_jax.atlas.facts import Fact

    odd = replace(world, facts=(*world.facts, Fact("capital", "Nowhere", "Nothingham")))
    with pytest.raises(ValueError, match="splits the name"):
        name_ids(odd, tokenizer)
