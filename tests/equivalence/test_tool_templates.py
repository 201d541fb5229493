"""Tools through the models' own templates: they show every schema and every result, or are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.chat import DATE_STRING
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tool_calls import SEARCH, tool
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.types import Continuation, Turn
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from scope_jax.text.messages import Messages
from tests.vocabularies import vocabulary

HERE = Path(__file__).parent
OLMO, CODER = HERE.parent / "games" / "olmo3.jinja", HERE / "qwen3_coder.jinja"
QUESTION = Messages("What is 2+2?")
PAIRS = [  # vocabulary, template, its dialects
    ("qwen", "Qwen-Qwen2.5-7B-Instruct.jinja", ("hermes", "xml")),
    ("qwen", "Qwen-Qwen3-0.6B.jinja", ("hermes", "observation")),
    ("qwen", CODER, ("qwen-coder",)),
    ("llama3", "meta-llama-Llama-3.1-8B-Instruct.jinja", ("llama", "xml")),
    ("llama3", "meta-llama-Llama-3.2-3B-Instruct.jinja", ("llama",)),
    ("olmo2_dolma2", OLMO, ("function", "xml")),
]
CASES = [(folder, template, name) for folder, template, names in PAIRS for name in names]
IDS = [f"{Path(template).stem} {name}" for _, template, name in CASES]


@tool
def python(code: str, seconds: int = 10, names: list[str] | None = None) -> str:
    """Runs a program.

    Args:
        code: In Python 3.
        seconds: After this time it is ended.
    """
    return code


SCHEMAS = (SEARCH, python.schema)


@pytest.fixture(scope="module")
def load(shared_data: Path):
    def of(folder: str, template: str | Path) -> Tokenizer:
        tokenizer = vocabulary(shared_data / "tokenizers" / folder)
        tokenizer._hf.chat_template = (shared_data / "chat_templates" / template).read_text(encoding="utf-8")
        return tokenizer

    return of


@pytest.mark.parametrize(("folder", "template", "name"), CASES, ids=IDS)
def test_every_schema_is_shown_and_every_result_comes_back(load, folder, template, name):
    tokenizer, dialect = load(folder, template), dialects.load(name)
    joiner = Joiner("chat", tokenizer, dialect, {}, SCHEMAS)
    messages = replace(QUESTION, tools=SCHEMAS)
    shown = tokenizer.decode(joiner.prompt(messages))
    for word in (
        "search",
        "query",
        "What to look for.",
        "python",
        "code",
        "seconds",
        "names",
        "Runs a program.",
        "array",
    ):
        assert word in shown
    text = dialect.write(Call("python", {"code": "print(4)"}), SCHEMAS)
    ids = np.asarray(tokenizer.encode(text), np.int32)
    turn = Turn("sampled", ids, np.zeros(len(ids), np.float32), text, "stop")
    results = ["4\nlines"] if name == "llama" else ["4\nlines", "Doc 1"]
    seen = joiner.observations([[result] for result in results])
    reply = joiner.responder(lambda turns: seen, messages)((turn,))
    assert isinstance(reply, Continuation)
    read = tokenizer.decode(reply.ids)
    places = [read.index(json.dumps(one)[1:-1] if name == "llama" else one) for one in results]
    assert places == sorted(places)
    if joiner.each:
        assert read.count("<tool_response>") == 2 and len(dialect.messages(seen)) == 2
    if dialect.declares:  # as transformers renders it
        conversation = [*messages.conversation(), {"role": "assistant", "content": text}, *dialect.messages(seen)]
        whole = tokenizer._hf.apply_chat_template(
            conversation, tools=[*SCHEMAS], add_generation_prompt=True, return_dict=False, date_string=DATE_STRING
        )
        assert [*joiner.prompt(messages), *ids.tolist(), *reply.ids] == whole


TOOLS = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT
NAMED = "{% for t in tools or () %}<tool_call>{{ t.function.name }}: {{ t.function.description }}{% endfor %}"
UNTYPED = (
    "{% for t in tools or () %}<tool_call>{{ t.function.name }} {{ t.function.description }}"
    "{% for k, v in t.function.parameters.properties.items() %} {{ k }} {{ v.description }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "left_out"),
    [
        (
            "{% if tools %}<tool_call>{{ tools[:1] | tojson }}{% endif %}" + CHAT,
            "leaves out the argument code of python",
        ),
        (NAMED + CHAT, "leaves out the argument query of search"),
        (UNTYPED + CHAT, "leaves out the types of arguments"),
        ("{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT, "does not mention <tool_call>"),
        (CHAT, "leaves out the tools"),
    ],
    ids=["one tool", "names", "no types", "no calls", "nothing"],
)
def test_a_template_that_does_not_show_the_tools_is_refused(load, template, left_out, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text(template)
    with pytest.raises(UserError, match=f"{left_out}.*; choose the model.dialect"):
        Joiner("chat", load("qwen", file), dialects.load("hermes"), {}, SCHEMAS)
    file.write_text(TOOLS + CHAT)
    Joiner("chat", load("qwen", file), dialects.load("hermes"), {}, SCHEMAS)


def test_a_template_with_room_for_one_result_gets_them_in_one_message(load, tmp_path):
    file = tmp_path / "own.jinja"
    last = CHAT.replace("in messages", "in messages[:3]")
    file.write_text(TOOLS + last + PROMPT)
    joiner = Joiner("chat-trimmed", load("qwen", file), dialects.load("hermes"), {}, SCHEMAS)
    assert not joiner.each and joiner.observations([["a"], ["b"]]) == joiner.dialect.observation(["a", "b"])


def test_llamas_calls_need_chat_turns(load):
    tokenizer = load("llama3", "meta-llama-Llama-3.1-8B-Instruct.jinja")
    with pytest.raises(UserError, match=r'choose model\.turns = "chat"'):
        Joiner("raw", tokenizer, dialects.load("llama"))
    with pytest.raises(UserError, match="does not mention <tool_call>"):
        Joiner("chat", tokenizer, dialects.load("hermes"), {}, SCHEMAS)


def test_a_tool_with_the_name_of_a_tag_is_refused(load):
    answer = {"name": "answer", "description": "d", "parameters": {"type": "object", "properties": {}}}
    with pytest.raises(UserError, match="writes a call of answer as <answer>, a tag with another meaning; rename"):
        Joiner("chat", load("qwen", PAIRS[0][1]), dialects.load("xml"), {}, (answer,))
