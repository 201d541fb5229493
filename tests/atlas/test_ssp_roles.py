"""SSP's demonstrations: which tokens are sampled, which facts they show, and the effect of permuting names."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scope_jax.text.parsing import first, labelled_answer, well_formed
from tools.atlas import games, warmup
from tools.atlas.rows import exchanged, name_ids, token_row
from tools.atlas.ssp_roles import HABITS, HOPS, Habits, SSPDemonstrations

KINDS = [(kind, hops) for kind in ("solve", "propose", "read") for hops in HOPS]


@pytest.mark.parametrize(("kind", "hops"), KINDS)
def test_only_the_policys_tokens_are_sampled(trained, tokenizer, kind: str, hops: int) -> None:
    for _ in range(10):
        script = getattr(trained, kind)(hops)
        row = token_row(script, tokenizer)
        sampled = "".join(text for text, said in script.parts if said) + ("<|im_end|>" if script.ends else "")
        forced = "".join(text for text, said in script.parts if not said)
        assert tokenizer.decode(row.ids_T[row.sampled_T].tolist()) == sampled
        assert tokenizer.decode(row.ids_T[~row.sampled_T].tolist()).endswith("<|im_start|>assistant\n" + forced)
        assert script.message in tokenizer.decode(row.ids_T[~row.sampled_T].tolist())
        assert len(row.ids_T) <= 448
        assert not row.logprobs_T.any()


def test_roles_use_the_games_formats(trained) -> None:
    for hops in HOPS:
        solver, proposer, reader = trained.solve(hops), trained.propose(hops), trained.read(hops)
        said = [text for text, sampled in solver.parts if sampled]
        assert len(said) == hops + 1
        assert all(well_formed(text, ("think", "search", "answer")) for text in said)
        assert first(said, "answer")
        asked = [text for text, sampled in proposer.parts if sampled]
        question = first(asked, "question")
        assert question is not None and question.count(" of ") == hops
        answer = proposer.message.rsplit(" ", 1)[-1]
        assert answer not in question.removesuffix("?").split()
        assert labelled_answer(reader.parts[0][0]) in reader.message


def test_sampled_text_on_true_facts_has_no_held_out_entity(trained, world) -> None:
    for kind, hops in KINDS:
        for _ in range(40):
            script = getattr(trained, kind)(hops) if kind == "read" else getattr(trained, kind)(hops, HABITS)
            question = script.message.splitlines()[-1]
            said = " ".join(text for text, sampled in script.parts if sampled)
            words = {word.strip(".?:") for word in f"{question} {said}".split()}
            assert not words & world.held_out


def test_candidates_of_a_choice_are_looked_up_in_order(trained) -> None:
    for _ in range(20):
        script = trained.choose()
        _, value, names = re.findall(r"has the (\w+) (\w+): (.+)\?", script.message)[0]
        candidates = re.findall(r"\w+", names.replace(" or ", " "))
        said = [text for text, sampled in script.parts if sampled]
        right = first(said, "answer") or ""
        looked_up = re.findall(r"<search> the \w+ of (\w+) </search>", "".join(said))
        assert looked_up == candidates[: candidates.index(right) + 1]
        assert f" of {right} is {value}: {right}." in said[-1]
        assert sum(f" is {value}." in text for text in said) == 0  # no other candidate has the value


def test_habits_have_the_given_probabilities(trained) -> None:
    always = Habits(sure=frozenset(), guess_sure=0.0, guess=1.0, guess_choice=1.0, half_way=0.0, unread=1.0)
    never = Habits(sure=frozenset(), guess_sure=1.0, guess=0.0, guess_choice=0.0, half_way=1.0, unread=0.0)
    assert all(len(trained.solve(hops, always).parts) == 1 for hops in HOPS for _ in range(5))
    assert all(len(trained.propose(hops, always).parts) == 1 for hops in HOPS for _ in range(5))
    assert all(len(trained.choose(always).parts) == 1 for _ in range(5))
    for _ in range(10):
        assert [sampled for _, sampled in trained.solve(1, never).parts] == [True, False, True]
        assert [sampled for _, sampled in trained.solve(2, never).parts] == [
            True,
            False,
            True,
        ]  # one search, two hops
        assert len(trained.solve(3, never).parts) in (3, 5)
        assert len(trained.propose(2, never).parts) == 5
        assert len(trained.choose(never).parts) >= 3


def test_held_out_questions_start_from_held_out_names(world, show) -> None:
    held_out = SSPDemonstrations(world, show, "held_out", seed=3)
    for material in (held_out.chains, held_out.trails):
        assert all(chain[0].entity in world.held_out for hops in HOPS for chain in material[hops])
    assert all(fact.entity in world.held_out for one in held_out.choices for fact in one.facts)


@pytest.mark.parametrize("game", games.GAMES)
def test_every_kind_of_demonstration_has_a_number_of_rows(world, show, show_one, game: str) -> None:
    roles = games.GAMES[game]
    makers = roles.makers(world, show if game == "ssp" else show_one, split="all", seed=0, with_habits=True)
    assert set(roles.READ_ROWS) == set(roles.PLAY_ROWS) == set(makers)
    assert len(roles.STEPS) == 2 and warmup.Recipe(*roles.STEPS).seed == 0


def test_exchanged_names_keep_the_structure(tokenizer, world, show) -> None:
    names_N = name_ids(world, tokenizer)
    row = token_row(SSPDemonstrations(world, show, "train", seed=3).solve(2), tokenizer)  # whatever ran before
    other = exchanged(row, names_N, tokenizer.vocab_size, np.random.default_rng(0))
    is_name = np.isin(row.ids_T, names_N)
    assert (other.ids_T[~is_name] == row.ids_T[~is_name]).all()
    assert np.isin(other.ids_T[is_name], names_N).all()
    assert (other.ids_T[is_name] != row.ids_T[is_name]).mean() > 0.9
    pairs = set(zip(row.ids_T.tolist(), other.ids_T.tolist(), strict=True))
    assert len(pairs) == len(set(row.ids_T.tolist())) == len(set(other.ids_T.tolist()))  # a one-to-one mapping
    assert (other.sampled_T == row.sampled_T).all()


def test_a_name_of_two_tokens_is_an_error(tokenizer, world) -> None:
    from dataclasses import replace

    from tools.atlas.facts import Fact

    odd = replace(world, facts=(*world.facts, Fact("capital", "Nowhere", "Nothingham")))
    with pytest.raises(ValueError, match="splits the name"):
        name_ids(odd, tokenizer)
