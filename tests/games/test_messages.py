"""Prompts as messages: how templates render system, user and tools, and which templates cannot."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scope_jax.config import Config
from scope_jax.games import GAMES, load_card, scope
from scope_jax.games.scope import messages as of_scope
from scope_jax.games.scope.options import ScopeSection
from scope_jax.games.scope.state import TaskOrder
from scope_jax.games.ssp import messages as of_ssp
from scope_jax.games.ssp.state import Slot
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import rubrics, searching
from scope_jax.play.tool_calls import SEARCH
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.types import Continuation, Restart, Turn
from scope_jax.run.assemble import assemble
from scope_jax.text import dialects, templates
from scope_jax.text.dialects import Dialect
from scope_jax.text.messages import Messages
from tests.games import harness, scope_world
from tests.games.harness import example, play_step

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "assets" / "atlas" / "ssp" / "tokenizer"
OLMO = Path(__file__).with_name("olmo3.jinja")
XML, HERMES, FUNCTION = (dialects.load(name) for name in ("xml", "hermes", "function"))
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
QWEN = "{% if tools %}<|im_start|>system\n{{ tools | tojson }} in <tool_call><|im_end|>\n{% endif %}" + CHATML + PROMPT


@pytest.fixture(scope="module")
def olmo() -> Tokenizer:
    """The harness's vocabulary with a template that follows OLMo-3's rules."""
    return Tokenizer.load(ATLAS, OLMO)


def shown(tokenizer: Tokenizer, messages: Messages, dialect: Dialect = FUNCTION) -> str:
    return tokenizer.decode(Joiner("chat", tokenizer, dialect).prompt(messages))


def signature(dialect: Dialect) -> str:
    return json.dumps(list(searching.declared(dialect)))


# --------------------------------------------------------------------------------------------------------------- OLMo-3
@pytest.mark.parametrize("messages", [
    of_scope.for_solver(scope_world.card(protocol="olmo3"), "Tell of Bern."),
    of_scope.for_challenger(scope_world.card(protocol="olmo3"), TaskOrder(0, "k", "Bern.", "planning", 2)),
], ids=["solver", "challenger"])  # fmt: skip
def test_olmos_prompt_declares_the_search_function(olmo, messages):
    said = shown(olmo, messages)
    system, user = said.split("<|im_end|>")[:2]
    assert f"<functions>{signature(FUNCTION)}</functions>" in system and "no function" not in said
    assert example(FUNCTION) in user and user.endswith(messages.user)
    assert said.endswith("<|im_start|>assistant\n")


def test_olmo_judges_without_a_function(olmo):
    said = shown(olmo, Messages("Is it so?"))
    assert "There is no function for you to call. <functions></functions>" in said


def test_a_custom_system_message_replaces_the_templates(olmo):
    system = "You look things up."
    own = shown(olmo, Messages("Go.", system, (SEARCH,)))
    assert own.startswith(f"<|im_start|>system\n{system}<functions>{signature(FUNCTION)}</functions><|im_end|>")
    assert shown(olmo, Messages("Go.", "")).startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\nGo.")


@pytest.mark.parametrize("protocol", ["qwen3", "olmo3"])
def test_the_games_declare_the_search_only_to_roles_that_may_search(protocol):
    cfg, name = scope_world.card(protocol=protocol), scope_world.PROTOCOLS[protocol][0]
    tools = scope_world.world(protocol=protocol)
    tools.script = harness.in_dialect(name, tools.script)
    play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), scope_world.DOCUMENTS, 0)
    judge = {"gates": False, "rubric_writer": False, "grader": False}
    assert told(tools) == {"challenger": True, "solver": True, **judge}

    cfg = harness.card()
    cfg = cfg.model_copy(update={"model": cfg.model.model_copy(update={"dialect": name, "turns": "chat"})})
    tools = harness.world(harness.in_dialect(name, harness.Plan()), dialect=name, turns="chat")
    play_step(GAMES["ssp"], cfg, tools, {"pool": []}, harness.ITEMS, 0)
    assert told(tools) == {"proposer": True, "solver": True, "verify": False}


def told(tools: harness.ScriptedTools) -> dict[str, bool]:
    """By role: whether its prompts begin with a declaration of tools."""
    mark = chr(harness.ROLES["tools"])
    return {role: text.startswith(mark) for (role, _), text in tools.prompts.items()}


# ---------------------------------------------------------------------------------------------------------------- turns
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize(
    ("name", "template"), [("function", OLMO.read_text()), ("hermes", QWEN), ("xml", CHATML + PROMPT)]
)
def test_later_turns_belong_to_the_same_conversation(name, template, system):
    """Appended or re-rendered, prompts equal the template's rendering with the system message and the tools."""
    tokenizer, dialect = Tokenizer.load(ATLAS, template), dialects.load(name)
    messages = Messages("Which river?", system, searching.declared(dialect))
    text, said = dialect.observation(["The Seine."]), f"I look. {searching.written_search('Paris', dialect)}"
    turn = Turn("sampled", np.asarray(tokenizer.encode(said), np.int32), np.zeros(1, np.float32), said, "stop")
    conversation = [*messages.conversation(), {"role": "assistant", "content": said}, *dialect.messages(text)]
    whole = tokenizer.encode_chat(conversation, tools=messages.declared())

    joiner = Joiner("chat", tokenizer, dialect)
    prompt = joiner.prompt(messages)
    reply = joiner.responder(lambda turns: text, messages)((turn,))
    assert isinstance(reply, Continuation)
    assert [*prompt, *turn.ids.tolist(), *reply.ids] == whole

    anew = Joiner("chat-trimmed", tokenizer, dialect).responder(lambda turns: text, messages)((turn,))
    assert isinstance(anew, Restart)
    assert list(anew.prompt_ids) == whole and whole[: len(prompt)] == prompt


def test_the_prompts_of_atlas_equal_those_in_its_demonstrations():
    """A prompt of one user message in tags has the same ids as when prompts were single strings."""
    on_scope, on_ssp = (load_card(ROOT / "configs" / system / "atlas.toml") for system in ("scope", "ssp"))
    bern = TaskOrder(0, "k", "(Title: The city Bern)\nA.", "planning", 2)
    prompts = [
        of_ssp.for_proposer(on_ssp, Slot(0, 0, ("Bern",), 2), 3),
        of_ssp.for_solver(on_ssp, "Which city lies on the Aare?"),
        Messages(of_ssp.for_verification(on_ssp, "Which?", "Doc 1")),
        of_scope.for_challenger(on_scope, bern),
        of_scope.for_solver(on_scope, "Tell of Bern."),
        Messages(rubrics.question(on_scope, on_scope.options(ScopeSection).prompts, "t", "a", "c")),
    ]
    ssp, scope = (
        Joiner("raw", Tokenizer.load(ATLAS.parents[1] / game / "tokenizer"), XML) for game in ("ssp", "scope")
    )
    ids = [joiner.prompt(messages) for joiner, messages in zip([ssp] * 3 + [scope] * 3, prompts, strict=True)]
    assert [len(row) for row in ids] == [22, 26, 21, 40, 21, 20]
    digest = "9fb44711c3d9e8391f5f284058d76bbb606aab5153cd477ff925050d0ff1f208"
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == digest


# ------------------------------------------------------------------------------------------------ what is not supported
NO_TOOLS = "{% if tools %}{{ raise_exception('Tools are not supported') }}{% endif %}" + CHATML + PROMPT
LLAMA = "{% if tools %}Respond with JSON. {{ tools | tojson }}{% endif %}" + CHATML + PROMPT
USERS = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}" + PROMPT
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + USERS


@pytest.mark.parametrize("mode", ["raw", "chat"])
@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (CHATML + PROMPT, "leaves out the search that model.dialect declares as a tool"),
        (NO_TOOLS, r"rejects the conversation \(Tools are not supported\) when the search is declared as a tool"),
        (LLAMA, "declares tools but does not mention <tool_call>"),
    ],
)
def test_a_template_that_cannot_declare_the_search_gives_one_clear_error(mode, template, complaint):
    tokenizer = Tokenizer.load(ATLAS, template)
    with pytest.raises(ValueError, match=f"{complaint}.*; choose the model.dialect of the model's family"):
        Joiner(mode, tokenizer, HERMES)
    Joiner(mode, tokenizer, XML)


@pytest.mark.parametrize("template", [USERS, STRICT])
def test_a_template_without_a_system_role_gives_one_clear_error(template):
    joiner = Joiner("raw", Tokenizer.load(ATLAS, template), XML)
    with pytest.raises(
        ValueError, match=r"does not support system messages, but solver\.system\.txt exists; remove it"
    ):
        joiner.check_system(Path("solver.system.txt"))
    Joiner("raw", Tokenizer.load(ATLAS), XML).check_system(Path("solver.system.txt"))


def test_a_run_is_refused_before_it_begins(tmp_path: Path):
    prompts = shutil.copytree(ROOT / "assets" / "atlas" / "prompts" / "ssp", tmp_path / "prompts")
    (prompts / "solver.system.txt").write_text("Search.")
    (tmp_path / "users.jinja").write_text(USERS)
    own = [f"ssp.prompts={prompts}", f"model.chat_template={tmp_path / 'users.jinja'}"]
    with pytest.raises(ValueError, match=r"does not support system messages, but .*solver\.system\.txt exists"):
        assemble(load_card(ROOT / "configs" / "ssp" / "atlas.toml", own), tmp_path / "run")
    with pytest.raises(ValueError, match="leaves out the search that model"):
        assemble(load_card(ROOT / "configs" / "ssp" / "atlas.toml", ["model.dialect=hermes"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------------------- prompt files
def with_prompts(system: str, folder: Path) -> Config:
    return load_card(ROOT / "configs" / system / "atlas.toml", [f"{system}.prompts={folder}"])


@pytest.mark.parametrize("system", ["scope", "ssp"])
def test_a_system_file_next_to_a_roles_prompt_is_its_system_message(tmp_path: Path, system: str):
    (tmp_path / "solver.txt").write_text(
        "{task} {question}".replace("{question}" if system == "scope" else "{task}", "")
    )
    cfg = with_prompts(system, tmp_path)
    for_solver = of_scope.for_solver if system == "scope" else of_ssp.for_solver
    assert GAMES[system].system_messages(cfg) == () and for_solver(cfg, "Why?") == Messages("Why?", tools=())
    (tmp_path / "solver.system.txt").write_text("Search with {search}.")
    assert GAMES[system].system_messages(cfg) == (tmp_path / "solver.system.txt",)
    asked = for_solver(cfg, "Why?")
    assert asked == Messages("Why?", f"Search with {example(XML)}.", ()) and asked.text.endswith(".\n\nWhy?")
    (tmp_path / "solver.system.txt").write_text("{tusk}")
    with pytest.raises(templates.PromptError, match=r"solver\.system\.txt: unknown variable \{tusk\}"):
        for_solver(cfg, "Why?")


# ------------------------------------------------------------------------------------------------------------- dialects
def test_a_json_call_is_explained_in_the_declaration_or_in_the_prompt_not_in_both():
    """Qwen's templates explain the format of a call; OLMo-3's only gives the tags, and the prompt the format."""
    assert example(HERMES) == "a call to the search function"
    assert example(FUNCTION) == searching.written_search("your query", FUNCTION)
