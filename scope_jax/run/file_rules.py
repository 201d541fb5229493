"""The rules on what a card refers to: models, prompts, data, corpora, tools and services, which they open."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_jax.config import EvalSet
from scope_jax.data import recognition
from scope_jax.data.rows import Row
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games import without_retrieval
from scope_jax.grading.judge_client import JudgeClient, Unreachable
from scope_jax.models.decoder.config import ModelConfig, differences
from scope_jax.models.files import peft, weights
from scope_jax.models.files.seal import fault
from scope_jax.models.files.tensorfile import Checkpoint
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import exams
from scope_jax.play.game import play_step, services_of
from scope_jax.play.searching import written_search
from scope_jax.play.tool_calls import SEARCH, SEARCH_NAME
from scope_jax.retrieval.build import manifest_of
from scope_jax.run.adapters import adapter_of
from scope_jax.run.given_answers import KINDS, given_answers
from scope_jax.run.indexing import described, probe
from scope_jax.run.opened import Doubt, OpenedCard, WithExample
from scope_jax.run.origin import check_game, checkpoint_at
from scope_jax.run.processes import by_one
from scope_jax.run.rendering import Rendered, RenderingTools, first_prompts
from scope_jax.run.teacher_client import TeacherClient
from scope_jax.text import dialects, templates
from scope_jax.web.exchange import shown

RESULTS = {  # how they are added, by model.turns
    "raw": "the result follows as plain text",
    "chat": "the result follows as a message of the chat template",
    "chat-trimmed": "the result follows as a message of the chat template, without the thoughts before it",
}
EXAM_ROWS = 256  # of an exam, whose prompts are counted


# ------------------------------------------------------------------------------------------------- folders with models
def stored(opened: OpenedCard, folder: str) -> str:
    """Of the base, or what a policy starts from: names, shapes and dtypes of the tensors; of the orbax layout the sizes
    of its files."""
    if folder != opened.folder and opened.cfg.model.adapter is not None:
        return _adapter(opened, folder)
    model: ModelConfig = opened.model if folder == opened.folder else weights.load_config(folder)
    found = f"{model.architecture}, {model.num_layers} layers"
    if weights.is_orbax(folder):
        if wrong := fault(Path(folder), sizes_only=True):
            raise UserError(f"the weights in {folder} cannot be used: {wrong}; convert or export them again.")
        return f"{found}, in the orbax layout"
    weights.stored_dtypes(folder)
    with ExitStack() as stack:
        return f"{found}, {len(Checkpoint(Path(folder), stack).names)} tensors"


def _adapter(opened: OpenedCard, folder: str) -> str:
    """Of a policy that starts from an adapter."""
    if not peft.is_adapter(folder):
        policy = next(name for name, start in opened.cfg.model.policies.items() if start == folder)
        raise UserError(
            f"model.policies.{policy} is {folder}, which holds no adapter (no adapter_config.json), but the policies "
            "of this card are adapters; give a folder written by `scope-jax export` or PEFT."
        )
    contents, section = peft.load_config(folder), adapter_of(opened.cfg.model.adapter)
    if section is not None and Path(opened.folder).is_dir():
        peft.load(folder, opened.model, section)
    return f"an adapter of rank {contents['r']}, alpha {contents['lora_alpha']}"


def beginnings(opened: OpenedCard) -> None:
    """Policies start from models like the base."""
    for name, folder in opened.cfg.model.policies.items() if opened.cfg.model.adapter is None else ():
        if differing := differences(opened.model, weights.load_config(folder)):
            raise UserError(
                f"the model in {folder}, from which {name} starts, differs from the base in {opened.folder} in "
                f"{', '.join(differing)}; all policies must have the base's architecture."
            )


def teacher(opened: OpenedCard, name: str) -> str:
    """A teacher's model, whose ids mean the tokens of the policies."""
    folder, tokenizer = opened.cfg.teachers[name].checkpoint or "", opened.tokenizer
    where = f"the teacher {name} in {folder}"
    if peft.is_adapter(folder):
        raise UserError(f"{where} is an adapter; export it merged with its base.")
    model = weights.checked_config(folder)
    if (other := tokenizer.difference(Tokenizer.load(folder, exact=False))) is not None:
        raise UserError(f"{where} has another vocabulary than the policies ({other}); choose one with the same.")
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{where} has {model.vocab_size} embeddings, fewer than the vocabulary of {tokenizer.vocab_size} tokens."
        )
    return f"{model.architecture}, {model.num_layers} layers, with the vocabulary of the policies"


def encoder(opened: OpenedCard) -> str | None:
    """The embedding model of the search; with a doubt where card and folder differ, or neither says something."""
    card = opened.cfg.retrieval
    if not opened.searches or card is None or card.encoder.checkpoint is None or card.url is not None:
        return None
    found, notes = described(card.encoder)
    Tokenizer.load(card.encoder.checkpoint, exact=False)
    return Doubt(f"{found}; {' '.join(notes)}") if notes else found


# ---------------------------------------------------------------------------------------------------- prompts and rows
def prompts(opened: OpenedCard) -> str | None:
    """The texts of the game's prompt folder, which are filled in; other files there are read."""
    opened.check_prompts()
    cfg = opened.cfg
    place = getattr(getattr(cfg, cfg.game_table), "prompts", None)
    if place is None:
        return None
    folder = Path(place)
    if not (files := sorted(folder.glob("*.txt"))):
        raise FileNotFoundError(f"the prompt folder {folder} holds no .txt file; correct {cfg.game_table}.prompts.")
    for file in files:
        text = file.read_bytes().decode("utf-8-sig", "replace")
        templates.load(folder, file.stem, known=sorted(templates.variables(text)), required=())
    return f"{len(files)} files in {folder}"


def data(opened: OpenedCard) -> str | None:
    source = opened.source
    return None if source is None else _rows(f"{len(opened.rows)} {source.kind} in {source.path}", source)


def exam(opened: OpenedCard, card: EvalSet) -> str:
    """The rows of an evaluation set, of which the first fills in the prompts."""
    rows = opened.exam_rows(card)
    exams.check_prompts(opened.cfg, opened.exam, {card.name: rows})
    return _rows(f"{len(rows)} rows in {card.path}", exams.source_of(opened.exam, card))


def _rows(found: str, source: Source) -> str:
    """What was found; a `Doubt` about answers that are solutions of GSM8K, which no reply equals."""
    if source.kind not in ("questions", "answers") or not recognition.holds_solutions(source.path):
        return found
    return Doubt(f"{found}, whose answers are whole solutions; {recognition.pointer(recognition.GSM8K, source.path)}.")


def answers(opened: OpenedCard) -> str | None:
    """Of rows with answers, those of exams, too: whether the game's grader reads them. Shows one of the data's."""
    examine = opened.game.examine
    if examine is None:
        return None

    def examined(rows: Sequence[Row]) -> dict[str, Any]:
        return by_one(lambda: asdict(examine(opened.cfg, rows)))

    data, *others = map(examined, (opened.rows, *map(opened.exam_rows, opened.cfg.evaluate.sets)))
    if doubts := [one["text"] for one in (data, *others) if one["doubtful"]]:
        return Doubt("; ".join(doubts))
    found = WithExample(data["text"])
    found.example = data["example"]
    return found


def search(opened: OpenedCard) -> str | None:
    """A server answers, or there is a corpus; an index that is there is its own."""
    card = opened.cfg.retrieval
    if not opened.searches or card is None:
        return None
    if card.url is not None:
        probe(card.url, card.timeout)
        return f"the server {shown(card.url)} answers"

    def passages() -> str:
        corpus = opened.corpus
        there = card.index is not None and manifest_of(Path(card.index), corpus) is not None
        state = "there" if there else "built when it is needed"
        return f"{len(corpus)} passages in {card.corpus}; the index is {state}"

    return by_one(passages)


def origin(opened: OpenedCard) -> str | None:
    """The run that this one starts from; a start has looked it up before, and a run that goes on needs it no more."""
    if opened.cfg.train.origin is None:
        return None
    place = checkpoint_at(opened.cfg.train.origin)
    check_game(opened.cfg, place)
    return str(place)


# -------------------------------------------------------------------------------------------------- tools and services
def tools(opened: OpenedCard) -> str | None:
    """The game's own tools; names differ, roles call no others, and the search is one if roles search."""
    names = opened.tool_names
    if opened.game.searches(opened.cfg) and SEARCH_NAME not in names:
        raise UserError(without_retrieval(opened.cfg))
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the game {opened.game.name} has two tools of the name {min(twice)}; give each its own.")
    for role in opened.game.roles(opened.cfg):
        for tool in () if role.external is not None else role.agent.tools:
            if isinstance(tool, str) and tool not in names:
                raise UserError(
                    f"the role {role.name} calls {tool!r}, but the game {opened.game.name} has the tools "
                    f"{', '.join(names) or 'none'}; add it to Game.tools, or correct the role."
                )
    return ", ".join(tool.name for tool in opened.tools)


def turns(opened: OpenedCard) -> str | None:
    """How calls are written and their results are read, in words; "" for a game without tools."""
    card, joiner = opened.cfg.model, opened.joiner
    if opened.cfg.retrieval is None and joiner.tools == (SEARCH,):  # what a joiner has if there are none
        return None
    written = " ".join(written_search("query", dialects.load(card.dialect)).split())
    call = f"a search is written {written}" if opened.cfg.retrieval is not None else "calls are written in a dialect"
    return f"{call} (model.dialect = {card.dialect}), and {RESULTS[card.turns]} (model.turns = {card.turns})"


def services(opened: OpenedCard) -> str | None:
    """What tools need has started: a sandbox has run a program, a server answers."""
    started = services_of(opened.tools)
    for service in started:
        service.start()
    return "ready" if started else None


def endpoint(opened: OpenedCard, name: str) -> str:
    """A teacher's endpoint rates tokens, and has the vocabulary of the policies."""
    card = opened.cfg.teachers[name].endpoint
    assert card is not None
    TeacherClient(name, card, opened.tokenizer, None).probe()
    return f"{card.model} at {shown(card.url)}, with the vocabulary of the policies"


def judge(opened: OpenedCard, name: str) -> str:
    """An external model answers; a doubt about one without which a run goes on."""
    card = opened.judges[name]
    client = JudgeClient(card)
    try:
        client.probe()
    except Unreachable as error:
        if card.required:
            raise
        return Doubt(f"{str(error).removesuffix('.')}; the run goes on without it.")
    finally:
        client.close()
    return f"{card.model} at {shown(card.url)} answers"


# ------------------------------------------------------------------------------------------- what is sampled or trained
def sampled_first(opened: OpenedCard) -> str | None:
    """The prompts of the first step; "" if it samples none, or a judge decides what is sampled."""
    opened.check_prompts()
    cfg, game = opened.cfg, opened.game
    tools = RenderingTools(opened)
    rendered = first_prompts(tools, lambda tools: play_step(game, cfg, tools, game.start(cfg), 0))
    return None if rendered is None else f"role {rendered.role}, {_described(rendered)}"


def trained(opened: OpenedCard) -> str | None:
    """Of conversations and preferences: what is trained of them, and one as the model sees it."""
    source = opened.source
    if source is None or source.kind not in KINDS:
        return None
    text, example = given_answers(opened.cfg, source.path, opened.rows, opened.tokenizer, opened.joiner)
    found = WithExample(text)
    found.example = example
    return found


def exam_prompts(opened: OpenedCard, card: EvalSet) -> str | None:
    rows = opened.exam_rows(card)[:EXAM_ROWS]
    tools = RenderingTools(opened, exam=True)
    rendered = first_prompts(tools, lambda tools: exams.play(opened.cfg, opened.exam, tools, rows, card))
    return None if rendered is None else _described(rendered)


def _described(rendered: Rendered) -> str:
    """Raises UserError if no prompt can be sampled."""
    if not rendered.sampled():
        raise UserError(rendered.described())
    return rendered.described()
