"""The Atlas world with its search tools and tokenizers, loaded once."""

from __future__ import annotations

import pytest

from scope_jax.data.corpus import load_corpus
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from tools.atlas import build
from tools.atlas.facts import ASSETS, World, load_world
from tools.atlas.games import GAMES
from tools.atlas.rows import Show
from tools.atlas.scope_roles import SCOPEDemonstrations
from tools.atlas.ssp_roles import SSPDemonstrations


@pytest.fixture(scope="session")
def world() -> World:
    return load_world()


@pytest.fixture(scope="session")
def show(world: World) -> Show:
    """The search tool with the settings of SSP's card."""
    return build.search_tool(load_corpus(ASSETS / "corpus.jsonl"), world, GAMES["ssp"])


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """SSP's tokenizer."""
    return Tokenizer.load(ASSETS / "ssp" / "tokenizer")


@pytest.fixture(scope="session")
def scope_tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "scope" / "tokenizer")


@pytest.fixture(scope="session")
def trained(world: World, show: Show) -> SSPDemonstrations:
    """SSP's demonstrations about train entities only."""
    return SSPDemonstrations(world, show, "train", seed=3)


@pytest.fixture(scope="session")
def show_one(world: World) -> Show:
    """The search tool with the settings of SCOPE's card."""
    return build.search_tool(load_corpus(ASSETS / "corpus.jsonl"), world, GAMES["scope"])


@pytest.fixture
def demos(world: World, show_one: Show) -> SCOPEDemonstrations:
    """SCOPE's demonstrations about train entities only."""
    return SCOPEDemonstrations(world, show_one, "train", seed=3)
