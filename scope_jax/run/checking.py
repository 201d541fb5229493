"""Opens everything that a card refers to, without compiling or generating: what a run would miss, all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from scope_jax.config import Config, EvalSet
from scope_jax.data import sources
from scope_jax.data.keys import rng
from scope_jax.data.sources import Source
from scope_jax.errors import UserError, is_users, sentence
from scope_jax.games import game_of
from scope_jax.learner.types import Datum, Reply
from scope_jax.models import peft, weights
from scope_jax.models.config import ModelConfig
from scope_jax.models.seal import fault
from scope_jax.models.tensorfile import Checkpoint
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.play import exams
from scope_jax.play.driver import EpisodeContext
from scope_jax.play.exams import Exam
from scope_jax.play.game import play_step, services_of
from scope_jax.play.judge_client import JudgeClient
from scope_jax.play.math_answers import SECONDS, Comparison
from scope_jax.play.rollouts import Agent, Ask, Failed, Interaction, Rollout
from scope_jax.play.searching import written_search
from scope_jax.play.tool_calls import SEARCH, SEARCH_NAME
from scope_jax.play.tool_execution import Execution, RolloutCalls
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.corpus import load_corpus
from scope_jax.retrieval.exchange import shown
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion, ToolResult
from scope_jax.run.adapters import adapter_of
from scope_jax.run.assemble import (
    Doubt,
    check_ahead,
    check_beginning,
    check_policies,
    check_reference,
    check_replay,
    check_template,
    check_tool_names,
    check_vocabulary,
    ends_of,
    joiner_of,
)
from scope_jax.run.engines import check_budget, replays
from scope_jax.run.given_answers import KINDS, given_answers
from scope_jax.run.indexing import described, probe
from scope_jax.run.scoring import check_teachers
from scope_jax.run.teacher_client import TeacherClient
from scope_jax.text import dialects, templates
from scope_jax.text.messages import Messages
from scope_jax.text.schemas import function_of

TOKENIZER = "tokenizer and template"  # a finding
RESULTS = {  # how they are added, by model.turns
    "raw": "and the result follows as plain text",
    "chat": "and the result follows as a message of the chat template",
    "chat-trimmed": "and the result follows as a message of the chat template, without the thoughts before it",
}
EXAM_ROWS = 256  # of an exam, whose prompts are counted


@dataclass(frozen=True)
class Finding:
    """One thing that was opened: what it is, and what was found, or what is wrong with it, or may be (`doubtful`)."""

    name: str
    text: str
    wrong: bool
    doubtful: bool = False
    example: str = ""
    """Lines that are shown below it."""


class WithExample(str):
    """What was found, with an example."""

    example = ""


def check(cfg: Config, left: Collection[str] = ()) -> Iterator[Finding]:
    """One finding for each model, tokenizer, prompt, data set, corpus, index and server of the card, as it is opened;
    then the lengths of the prompts that training and exams sample first.

    left: models that are not opened, as they are on the hub. Errors that are not the user's are raised.
    """
    loaded = cache(partial(_loaded, cfg))
    there = _tokenizer_folder(cfg) not in left
    wrong: dict[str, str] = {}  # what is wrong with it, by name
    checks: list[tuple[str, Callable[[], str]]] = [
        ("game", lambda: _game(cfg)),
        *((f"model {one}", lambda one=one: _model(cfg, one, left)) for one in _models(cfg) if one not in left),
        *([(TOKENIZER, lambda: _tokenizer(cfg, *loaded(), left))] if there else []),
        *(
            [("ends of replies", lambda: "" if TOKENIZER in wrong else ends_of(cfg.model, loaded()[0]))]
            if there
            else []
        ),
        ("prompts", lambda: _prompts(cfg)),
        ("data", lambda: _data(cfg)),
        *((f"exam {one.name}", lambda one=one: _exam(cfg, one)) for one in cfg.evaluate.sets),
        ("encoder", lambda: _encoder(cfg, left)),
        ("search", lambda: _search(cfg)),
        ("tools", lambda: _tools(cfg)),
        *([("teachers", lambda: "" if TOKENIZER in wrong else _teachers(cfg, loaded()[0], left))] if there else []),
        *((f"model behind {name}", lambda name=name: _judge(cfg, name)) for name in _judges(cfg)),
    ]
    for finding in filter(None, (_found(*one) for one in checks)):
        if not finding.wrong or finding.text not in wrong.values():  # a fault that several of them meet is told once
            yield finding
        if finding.wrong:
            wrong[finding.name] = finding.text
    if not there or not wrong.keys().isdisjoint(("game", TOKENIZER, "prompts", "data")):
        return
    sampled: list[tuple[str, Callable[[], str]]] = [
        ("first prompts", lambda: _first_prompts(cfg, loaded()[1])),
        ("given answers", lambda: _given_answers(cfg, *loaded())),
    ]
    for one in cfg.evaluate.sets:
        if f"exam {one.name}" not in wrong:
            sampled.append((f"prompts of exam {one.name}", lambda one=one: _exam_prompts(cfg, one, loaded()[1])))
    yield from filter(None, (_found(*one) for one in sampled))


def _found(name: str, open_it: Callable[[], str]) -> Finding | None:
    """What was found, or what is wrong; None if there is nothing to say."""
    try:
        found = open_it()
    except (OSError, ValueError, UserError) as error:
        if not is_users(error):
            raise
        return Finding(name, sentence(error), True)
    example = found.example if isinstance(found, WithExample) else ""
    return Finding(name, found, False, isinstance(found, Doubt), example) if found else None


def _game(cfg: Config) -> str:
    game = game_of(cfg)
    game.updates(cfg)  # reads the table of a game of one's own
    check_policies(cfg, game)
    check_ahead(cfg, game)
    check_replay(cfg, game)
    check_reference(cfg, game)
    return f"{cfg.system}, which trains {', '.join(game.policies(cfg))}"


def _models(cfg: Config) -> list[str]:
    teachers = [teacher.checkpoint for teacher in cfg.teachers.values() if teacher.checkpoint is not None]
    return list(dict.fromkeys([cfg.model.checkpoint, *cfg.model.policies.values(), *teachers]))


def _model(cfg: Config, folder: str, left: Collection[str]) -> str:
    """Names, shapes and dtypes of the tensors; of the orbax layout the sizes of its files, of an adapter its values.
    Where a policy starts from it, it must be like the base."""
    for name, start in cfg.model.policies.items():
        if start == folder and _base_is_here(cfg, left):
            check_beginning(cfg, name, folder)
    if peft.is_adapter(folder):
        contents, adapter = peft.load_config(folder), adapter_of(cfg.model.adapter)
        if adapter is not None and Path(cfg.model.checkpoint).is_dir():
            peft.load(folder, weights.checked_config(cfg.model.checkpoint), adapter)
        return f"an adapter of rank {contents['r']}, alpha {contents['lora_alpha']}"
    model: ModelConfig = weights.load_config(folder)
    if folder == cfg.model.checkpoint:
        replays(cfg, model)
        check_budget(cfg, model)
    if weights.is_orbax(folder):
        if wrong := fault(Path(folder), sizes_only=True):
            raise UserError(f"the weights in {folder} cannot be used: {wrong}; convert or export them again.")
        return _as_long(cfg, folder, model, "in the orbax layout")
    weights.stored_dtypes(folder)
    with ExitStack() as stack:
        stored = Checkpoint(Path(folder), stack)
        return _as_long(cfg, folder, model, f"{len(stored.names)} tensors")


def _as_long(cfg: Config, folder: str, model: ModelConfig, form: str) -> str:
    """The model in words, a doubt if the card's episodes are longer than what it is for."""
    found = f"{model.architecture}, {model.num_layers} layers, {form}"
    if folder != cfg.model.checkpoint or cfg.engine_length <= model.max_positions:
        return found
    key = "rollout" if cfg.rollout.max_length == cfg.engine_length else "evaluate"
    return Doubt(
        f"{found}; its config.json is for {model.max_positions:,} tokens, and {key}.max_length is "
        f"{cfg.engine_length:,}: lower it, unless the model is known to read more"
    )


def _base_is_here(cfg: Config, left: Collection[str]) -> bool:
    return cfg.model.checkpoint not in left and Path(cfg.model.checkpoint).is_dir()


def _tokenizer_folder(cfg: Config) -> str:
    return cfg.model.tokenizer or cfg.model.checkpoint


def _loaded(cfg: Config) -> tuple[Tokenizer, Joiner]:
    tokenizer = Tokenizer.load(_tokenizer_folder(cfg), cfg.model.chat_template, model=cfg.model.checkpoint)
    game = game_of(cfg)
    own = game.tools(cfg)
    try:
        return tokenizer, joiner_of(cfg, game, tokenizer, own)
    finally:
        for service in services_of(own):  # a server whose tools were listed
            service.close()


def _tokenizer(cfg: Config, tokenizer: Tokenizer, joiner: Joiner, left: Collection[str]) -> str:
    if _base_is_here(cfg, left):
        check_vocabulary(tokenizer, weights.load_config(cfg.model.checkpoint), cfg.model.checkpoint)
    check_template(cfg, tokenizer)
    return f"{tokenizer.vocab_size} tokens{_conversation(cfg, joiner)}"


def _conversation(cfg: Config, joiner: Joiner) -> str:
    """How calls are written and their results are read, in words; "" for a game without tools."""
    if cfg.retrieval is None and joiner.tools == (SEARCH,):  # what a joiner has if there are none
        return ""
    written = " ".join(written_search("query", dialects.load(cfg.model.dialect)).split())
    call = f"a search is written {written}" if cfg.retrieval is not None else "calls are written in a dialect"
    turns = f"{RESULTS[cfg.model.turns]} (model.turns = {cfg.model.turns})"
    return f"; {call} (model.dialect = {cfg.model.dialect}), {turns}"


def _prompts(cfg: Config) -> str:
    """The texts of the game's prompt folder, which are filled in; other files there are read."""
    game_of(cfg).check_prompts(cfg)
    prompts = getattr(getattr(cfg, cfg.game_table), "prompts", None)
    if prompts is None:
        return ""
    folder = Path(prompts)
    if not (files := sorted(folder.glob("*.txt"))):
        raise FileNotFoundError(f"the prompt folder {folder} holds no .txt file; correct {cfg.game_table}.prompts.")
    for file in files:
        text = file.read_bytes().decode("utf-8-sig", "replace")
        templates.load(folder, file.stem, known=sorted(templates.variables(text)), required=())
    return f"{len(files)} files in {folder}"


def _first_prompts(cfg: Config, joiner: Joiner) -> str:
    """Those of the first step; "" if it samples none, or a judge decides what is sampled."""
    game = game_of(cfg)
    source = game.rows(cfg)
    tools = RenderingTools(cfg, joiner, () if source is None else sources.load(source))
    rendered = first_prompts(tools, lambda tools: play_step(game, cfg, tools, game.start(cfg), 0))
    return "" if rendered is None else f"role {rendered.role}, {_described(rendered)}"


def _given_answers(cfg: Config, tokenizer: Tokenizer, joiner: Joiner) -> str:
    """Of conversations and preferences: what is trained of them, and one as the model sees it."""
    source = game_of(cfg).rows(cfg)
    if source is None or source.kind not in KINDS:
        return ""
    text, example = given_answers(cfg, source, tokenizer, joiner)
    found = WithExample(text)
    found.example = example
    return found


def _exam_prompts(cfg: Config, card: EvalSet, joiner: Joiner) -> str:
    exam = game_of(cfg).exam_of(cfg)
    rows = _rows(exam, card)[:EXAM_ROWS]
    tools = RenderingTools(cfg, joiner, (), exam=True)
    rendered = first_prompts(tools, lambda tools: exams.play(cfg, exam, tools, rows, card))
    return "" if rendered is None else _described(rendered)


def _described(rendered: Rendered) -> str:
    """Raises ValueError if no prompt can be sampled."""
    if not rendered.sampled():
        raise UserError(rendered.described())
    return rendered.described()


def _data(cfg: Config) -> str:
    source = game_of(cfg).rows(cfg)
    return "" if source is None else f"{len(sources.load(source))} {source.kind} in {source.path}"


def _exam(cfg: Config, card: EvalSet) -> str:
    exam = game_of(cfg).exam_of(cfg)
    rows = _rows(exam, card)
    exams.check_prompts(cfg, exam, {card.name: rows})
    return f"{len(rows)} rows in {card.path}"


def _rows(exam: Exam, card: EvalSet) -> Sequence[Row]:
    return sources.load(Source(card.path, exams.kind_of(exam, card), card))


def _encoder(cfg: Config, left: Collection[str]) -> str:
    """The embedding model of the search; with a doubt where card and folder differ, or neither says something."""
    card = cfg.retrieval
    if card is None or card.encoder.checkpoint is None or card.encoder.checkpoint in left or card.url is not None:
        return ""
    found, notes = described(card.encoder)
    Tokenizer.load(card.encoder.checkpoint, exact=False)
    return Doubt(f"{found}; {' '.join(notes)}") if notes else found


def _search(cfg: Config) -> str:
    card = cfg.retrieval
    if card is None:
        return ""
    if card.url is not None:
        probe(card.url, card.timeout)
        return f"the server {shown(card.url)} answers"
    corpus = load_corpus(card.corpus or "", {**card.columns}, card.split, card.hub_config)
    there = card.index is not None and Path(card.index).exists()
    return f"{len(corpus)} passages in {card.corpus}; the index is {'there' if there else 'built when it is needed'}"


def _tools(cfg: Config) -> str:
    """The game's tools, once what they need has started as for a run: a sandbox has run a program, a server answers."""
    game = game_of(cfg)
    tools = game.tools(cfg)
    services = services_of(tools)
    check_tool_names(game, [*([] if cfg.retrieval is None else [SEARCH_NAME]), *(tool.name for tool in tools)])
    try:
        for service in services:
            service.start()
    finally:
        for service in services:
            service.close()
    return ", ".join(tool.name for tool in tools) + (", ready" if services else "") if tools else ""


def _teachers(cfg: Config, tokenizer: Tokenizer, left: Collection[str]) -> str:
    """The teachers, whose tokens are those of the policies."""
    if any(teacher.checkpoint in left for teacher in cfg.teachers.values()):
        return ""
    check_teachers(cfg, game_of(cfg).policies(cfg), tokenizer)
    for name, teacher in cfg.teachers.items():
        if teacher.endpoint is not None:
            TeacherClient(name, teacher.endpoint, tokenizer, None).probe()
    return f"{', '.join(cfg.teachers)}, with the vocabulary of the policies" if cfg.teachers else ""


def _judges(cfg: Config) -> list[str]:
    game = game_of(cfg)
    return list({**game.judges(cfg), **exams.judges(cfg, game.exam_of(cfg))})


def _judge(cfg: Config, name: str) -> str:
    game = game_of(cfg)
    card = {**game.judges(cfg), **exams.judges(cfg, game.exam_of(cfg))}[name]
    client = JudgeClient(card)
    try:
        client.probe()
    finally:
        client.close()
    return f"{card.model} at {shown(card.url)} answers"


# ---------------------------------------------------------------------------------------------------- the first prompts
@dataclass(frozen=True)
class Rendered:
    """The prompts of a role: their lengths in tokens, and the limits of the call that samples from them.

    max_tokens: of one turn. max_prompt_tokens: longer prompts are not sampled, None: all that fit. max_length: of
    an episode with its prompt, the value of `key`.
    """

    role: str
    lengths: tuple[int, ...]
    max_tokens: int
    max_prompt_tokens: int | None
    max_length: int
    key: str = "rollout.max_length"

    def sampled(self) -> list[int]:
        """Lengths of the prompts that are sampled."""
        longest = min(self.max_length - 1, self.max_prompt_tokens or self.max_length)
        return [length for length in self.lengths if length <= longest]

    def described(self) -> str:
        """One line: lengths, prompts that are too long, and the room that is left for a turn after the longest one."""
        count, fitting = len(self.lengths), self.sampled()
        low, high = min(self.lengths), max(self.lengths)
        text = f"{count} of {high:,} tokens" if low == high else f"{count} of {low:,} to {high:,} tokens"
        if len(fitting) < count:
            own = self.max_prompt_tokens is not None and self.max_prompt_tokens < self.max_length
            limit = f"their max_prompt_tokens = {self.max_prompt_tokens}" if own else self._room
            text += f"; {count - len(fitting)} are too long for {limit} and are not sampled: raise it, or shorten them"
        if fitting and (room := self.max_length - max(fitting)) < self.max_tokens:
            text += (
                f"; after the longest there is room for {room:,} of a turn's {self.max_tokens:,} tokens in {self._room}"
            )
        return text

    @property
    def _room(self) -> str:
        return f"{self.key} = {self.max_length}"


class _Sampled(Exception):
    """Raised where the first completion would be sampled. rendered: its prompts, None for those of a judge."""

    def __init__(self, rendered: Rendered | None) -> None:
        super().__init__()
        self.rendered = rendered


class _Off:
    """A record in place of tools that are off: a call of one ends the play."""

    closed = True

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        return []

    def write(self, agent: str, number: int, result: ToolResult) -> NoReturn:
        raise _Sampled(None)

    def differs(self, agent: str, number: int) -> NoReturn:
        raise _Sampled(None)


class RenderingTools:
    """Implements `play.tools.Tools` up to the first call that needs a model, which ends the play.

    rows: the training data, not empty if the game reads any. exam: the prompts are those of an exam. Searches find
    nothing.
    """

    def __init__(self, cfg: Config, joiner: Joiner, rows: Sequence[Row], *, exam: bool = False) -> None:
        own = exam and cfg.evaluate.max_length is not None
        self._length = cfg.exam_length if exam else cfg.rollout.max_length
        self._key = "evaluate.max_length" if own else "rollout.max_length"
        self._cfg = cfg
        self._joiner = joiner
        self._rows = rows

    def rows(self, first: int, count: int) -> list[Row]:
        return sources.items(self._rows, first, count, self._cfg.seed)

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self._joiner.prompt(messages))

    def tokens(self, text: str) -> int:
        return len(self._joiner.tokenizer.encode(text))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        if not rollouts:
            return []
        named = {function_of(schema)["name"]: schema for schema in self._joiner.tools}
        if unknown := [tool for tool in agent.tools if isinstance(tool, str) and tool not in named]:
            raise UserError(f"the role {role} calls {unknown[0]!r}, which is not among the game's tools (Game.tools).")
        tools = tuple(named[tool] if isinstance(tool, str) else tool.schema for tool in agent.tools)
        lengths = tuple(self.prompt_tokens(rollout.messages.declaring(tools)) for rollout in rollouts)
        limits = (agent.sampling.max_tokens, agent.max_prompt_tokens)
        raise _Sampled(Rendered(role, lengths, *limits, self._length, self._key))

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        """Of several agents that are asked first, the prompts of the first one count."""
        first = [self._first(rollout) for rollout in rollouts]
        if not (asked := [each for each in first if each is not None]):
            return [[Interaction(None, {}) for _ in range(samples)] for _ in rollouts]
        agent = agents[asked[0].agent]
        prompts = [Messages(ask.say) if isinstance(ask.say, str) else ask.say for ask in asked]
        self.play(role, [Rollout(f"{place}", prompt) for place, prompt in enumerate(prompts)], agent)
        raise AssertionError("unreachable: `play` ends the play")

    def _first(self, rollout: Rollout) -> Ask | None:
        """What the rollout's generator asks first, None if it asks nothing; its tools are off."""
        assert rollout.play is not None
        execution = Execution(self._joiner.tokenizer.encode, self._joiner.tokenizer.decode, self.tell, 1)
        calls = RolloutCalls(execution, lambda tool: rng("check", tool), _Off())
        generator = rollout.play(EpisodeContext(rollout.name, 0, rng("check", rollout.name), calls))
        try:
            asked = next(generator, None)
        except Failed as error:
            raise UserError(f"the rollout {rollout.name!r} fails before its first turn ({error}); mend it.") from None
        finally:
            generator.close()
        return asked[0] if isinstance(asked, tuple) else asked

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> NoReturn:
        raise _Sampled(None)

    def once(self, name: str, work: Callable[[], Any]) -> NoReturn:
        raise _Sampled(None)

    def search(self, queries: Sequence[str]) -> list[str]:
        return ["" for _ in queries]

    def judge(self, messages: Sequence[str], **sampling: Any) -> list[Reply]:
        raise _Sampled(None)

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> NoReturn:
        raise _Sampled(None)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        raise _Sampled(None)

    def score(self, by: str, rows: Sequence[Datum], **options: Any) -> NoReturn:
        raise _Sampled(None)

    def probe(self, by: str) -> str:
        return ""

    def tell(self, sentence: str) -> None:
        """Says nothing."""


def first_prompts(tools: RenderingTools, play: Callable[[RenderingTools], object]) -> Rendered | None:
    """The prompts that `play` samples first; None if it asks a judge before it samples, or samples nothing."""
    try:
        play(tools)
    except _Sampled as reached:
        return reached.rendered
    return None
