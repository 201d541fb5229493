"""The world, its search tool and its tokenizer, made once."""

from __future__ import annotations

import pytest

from models.tokenizer import Tokenizer
from retrieval.corpus import load_corpus
from scope_jax.atlas import build
from scope_jax.atlas.demonstrations import Library
from scope_jax.atlas.facts import ASSETS, World, load_world
from scope_jax.atlas.report_demonstrations import Newsroom
from scope_jax.atlas.report_scripts import card
from scope_jax.atlas.scripts import Show


@pytest.fixture(scope="session")
def world() -> World:
    return load_world()


@pytest.fixture(scope="session")
def show(world: World) -> Show:
    return build.search_tool(load_corpus(ASSETS / "corpus.jsonl"), world)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "tokenizer")


@pytest.fixture(scope="session")
def trained(world: World, show: Show) -> Library:
    """Demonstrations of train entities alone."""
    return Library(world, show, train_only=True, seed=3)


@pytest.fixture(scope="session")
def show_one(world: World) -> Show:
    """The search tool as SCOPE's card has it."""
    retrieval = card().retrieval
    assert retrieval is not None
    return build.search_tool(load_corpus(ASSETS / "corpus.jsonl"), world, retrieval.top_k)


@pytest.fixture
def room(world: World, show_one: Show) -> Newsroom:
    """SCOPE's demonstrations about train things alone."""
    return Newsroom(world, show_one, train_only=True, seed=3)
