"""What a card refers to, opened once: by `check`, by a start and by `plan`, which look at it by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from scope_jax.config import Config, EvalSet, JudgeSection, ServedModel
from scope_jax.data import recognition
from scope_jax.data.corpus import Corpus, load_corpus
from scope_jax.data.rows import Row
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import exams
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game, services_of
from scope_jax.play.tool_calls import SEARCH, SEARCH_NAME, Tool
from scope_jax.play.turns import Joiner
from scope_jax.text import dialects

T = TypeVar("T")
FAULTS = (OSError, UserError)  # what the user has to mend


class Doubt(str):
    """What was found, of which something may be wrong."""


class WithExample(str):
    """What was found, with an example."""

    example = ""


class OpenedModel:
    """A model with its tokenizer. folder: where architecture and tokenizer are, None: model.checkpoint. model: its
    config, if it is known from elsewhere."""

    def __init__(self, cfg: Config | ServedModel, folder: str | None = None, model: ModelConfig | None = None) -> None:
        self.cfg, self.folder = cfg, folder or cfg.model.checkpoint
        self.results: dict[str, Any] = {} if model is None else {"model": model}

    def kept(self, name: str, open_it: Callable[[], T]) -> T:
        """What `open_it` gave, or raised, when it was first called under this name."""
        if name not in self.results:
            try:
                self.results[name] = open_it()
            except FAULTS as fault:
                self.results[name] = fault
        if isinstance(result := self.results[name], FAULTS):
            raise result
        return result

    @property
    def model(self) -> ModelConfig:
        """Its config.json, compared with the weights beside it."""
        return self.kept("model", lambda: weights.checked_config(self.folder))

    @property
    def tokenizer(self) -> Tokenizer:
        """The card's tokenizer for the model."""
        card = self.cfg.model
        folder = card.tokenizer or self.folder
        return self.kept("tokenizer", lambda: Tokenizer.load(folder, card.chat_template, model=self.folder))


class OpenedCard(OpenedModel):
    """A card and what it refers to. searches: False if nothing will be searched. judges: the external models in use,
    None: all of the card's."""

    def __init__(
        self,
        cfg: Config,
        folder: str | None = None,
        model: ModelConfig | None = None,
        *,
        searches: bool = True,
        judges: Mapping[str, JudgeSection] | None = None,
    ) -> None:
        super().__init__(cfg, folder, model)
        self.cfg: Config = cfg
        self.searches = searches and cfg.retrieval is not None
        if judges is not None:
            self.results["judges"] = judges

    @property
    def game(self) -> Game:
        """The card's game."""
        return self.kept("game", lambda: game_of(self.cfg))

    @property
    def exam(self) -> Exam:
        """How the game answers questions."""
        return self.kept("exam", lambda: self.game.exam_of(self.cfg))

    @property
    def judges(self) -> Mapping[str, JudgeSection]:
        """The external models of game and exams by name."""
        return self.kept("judges", self.external_models)

    def external_models(self) -> Mapping[str, JudgeSection]:
        """All of the card's, in use or not."""
        return {**self.game.judges(self.cfg), **exams.judges(self.cfg, self.exam)}

    def check_prompts(self) -> None:
        """Reads the game's prompts."""
        self.kept("prompts", lambda: self.game.check_prompts(self.cfg))

    @property
    def source(self) -> Source | None:
        """Where the rows of the data are, None for a game without any."""
        return self.kept("source", lambda: self.game.rows(self.cfg))

    @property
    def rows(self) -> Sequence[Row]:
        """The data, empty for a game without any."""
        return self.kept("rows", lambda: () if self.source is None else recognition.load(self.source))

    def exam_rows(self, card: EvalSet) -> Sequence[Row]:
        """The rows of an evaluation set."""
        return self.kept(f"exam {card.name}", lambda: recognition.load(exams.source_of(self.exam, card)))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The game's own tools."""
        return self.kept("tools", lambda: self.game.tools(self.cfg))

    @property
    def tool_names(self) -> list[str]:
        """The names of all tools, the search's first."""
        return [*([] if self.cfg.retrieval is None else [SEARCH_NAME]), *(tool.name for tool in self.tools)]

    @property
    def searches_index(self) -> bool:
        """Whether roles search in the card's [retrieval], and not by a tool that the game brings under this name."""
        return self.game.searches(self.cfg) and all(tool.name != SEARCH_NAME for tool in self.tools)

    @property
    def joiner(self) -> Joiner:
        """How the card joins turns."""
        return self.kept("joiner", self._joiner)

    def _joiner(self) -> Joiner:
        card, schemas = self.cfg.model, tuple(tool.schema for tool in self.tools)
        tools = (SEARCH, *schemas) if self.searches_index or not schemas else schemas
        options: dict[str, Any] = dict(card.chat_template_kwargs)
        joiner = Joiner(card.turns, self.tokenizer, dialects.load(card.dialect), options, tools)
        for file in self.game.system_messages(self.cfg):
            joiner.check_system(file)
        return joiner

    @property
    def corpus(self) -> Corpus:
        """The passages of an index in this process."""
        card = self.cfg.retrieval
        assert card is not None
        place = card.corpus or ""
        return self.kept("corpus", lambda: load_corpus(place, {**card.columns}, card.split, card.hub_config))

    @property
    def corpus_if_read(self) -> Corpus | None:
        """The passages, if a rule of this process has read them."""
        corpus = self.results.get("corpus")
        return corpus if isinstance(corpus, Corpus) else None

    def close(self) -> None:
        """Ends the services of the tools, if these were opened."""
        if isinstance(tools := self.results.get("tools", ()), tuple):
            for service in services_of(tools):
                service.close()
