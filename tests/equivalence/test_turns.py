"""Turns joined by real templates: the tokens between two turns are those of transformers' rendering."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scope_jax.models.tokenizers.chat import DATE_STRING
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import searching
from scope_jax.play.turns import Cut, Joiner
from scope_jax.rollouts.types import Continuation, Restart, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages
from tests.vocabularies import vocabulary

QUESTION = Messages("Which river flows through Paris?")
THOUGHT = "<think>\nI should look it up.\n</think>\n\n"
OLMO = Path(__file__).parents[1] / "games" / "olmo3.jinja"
TEMPLATES = {"qwen2.5": "Qwen-Qwen2.5-7B-Instruct.jinja", "qwen3": "Qwen-Qwen3-0.6B.jinja"}


@pytest.fixture(scope="module")
def load(shared_data: Path):
    """Tokenizer of a folder with a template, until the next call."""

    def of(folder: str, template: str | Path) -> Tokenizer:
        tokenizer = vocabulary(shared_data / "tokenizers" / folder)
        text = (shared_data / "chat_templates" / template).read_text(encoding="utf-8")
        tokenizer._hf.chat_template = text
        return tokenizer

    return of


@pytest.fixture(params=TEMPLATES)
def tokenizer(request, load) -> Tokenizer:
    return load("qwen", TEMPLATES[request.param])


def turn(tokenizer: Tokenizer, text: str, *, ended: bool) -> Turn:
    ids = tokenizer.encode(text) + ([tokenizer.eos_id] if ended else [])
    return Turn("sampled", np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), text, "eos" if ended else "stop")


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("name", ["xml", "hermes"])
def test_a_continued_chat_equals_the_templates_rendering(tokenizer, name, ended):
    """Prompt, sampled ids and the ids between turns together equal the template's rendering of the conversation."""
    dialect = dialects.load(name)
    text = dialect.observation(["Doc 1\nThe Seine.", "Doc 2\nThe Marne."])
    said = [turn(tokenizer, f"I look: {searching.written_search('Paris river', dialect)}", ended=ended)]
    reply = Joiner("chat", tokenizer, dialect).responder(lambda turns: text, QUESTION)(tuple(said))
    assert isinstance(reply, Continuation)
    prompt = QUESTION.conversation()
    messages = [*prompt, {"role": "assistant", "content": said[0].text}, *dialect.messages(text)]
    ids = [*tokenizer.encode_chat(prompt), *said[0].ids.tolist(), *reply.ids]
    assert ids == tokenizer.encode_chat(messages)
    assert ids == tokenizer._hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert text in tokenizer.decode(ids)  # inside the tag, whichever side wrote it


@pytest.mark.parametrize("name", ["xml", "hermes"])
def test_the_prompt_without_earlier_thinking_equals_the_templates_rendering(tokenizer, name):
    """After two turns, transformers renders the messages without their thoughts to the ids of the new prompt."""
    dialect = dialects.load(name)
    texts = [dialect.observation([result]) for result in ("The Seine.", "The Marne.")]
    searches = [searching.written_search(query, dialect) for query in ("Paris river", "Paris second river")]
    said = [turn(tokenizer, THOUGHT + search, ended=False) for search in searches]
    observed = Turn("observation", np.zeros(1, np.int32), np.zeros(1, np.float32), texts[0], None, True)
    joiner = Joiner("chat-trimmed", tokenizer, dialect)
    reply = joiner.responder(lambda turns: texts[1], QUESTION)((said[0], observed, said[1]))
    assert isinstance(reply, Restart)
    messages = list(QUESTION.conversation())
    for search, text in zip(searches, texts, strict=True):
        messages += [{"role": "assistant", "content": search}, *dialect.messages(text)]
    expected = tokenizer._hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(reply.prompt_ids) == expected
    assert "<think>" not in tokenizer.decode(reply.prompt_ids)


@pytest.mark.parametrize(("folder", "name"), [("qwen", "xml"), ("qwen", "hermes"), ("olmo2_dolma2", "xml")])
def test_a_cut_keeps_the_fewest_tokens_that_hold_the_search(load, folder, name):
    """Vocabularies have tokens like ">\\n" and "></", within which a search may end."""
    tokenizer, dialect = load(folder, TEMPLATES["qwen2.5"]), dialects.load(name)
    joiner, within = Joiner("raw", tokenizer, dialect), 0
    for rest in ("\n\n<information>", "></a>", ".\n", " and 😀", "\n"):
        head = f"<think>日本 é 😀</think>\n{searching.written_search('Rhein é', dialect)}"
        said = turn(tokenizer, head + rest, ended=False)
        reply = joiner.responder(lambda turns, end=len(head): Cut(end, "R"), QUESTION)((said,))
        assert isinstance(reply, Continuation)
        ids = said.ids.tolist()[: reply.kept]
        assert tokenizer.decode(ids).startswith(head) and not tokenizer.decode(ids[:-1]).startswith(head)
        within += tokenizer.decode(ids) != head
    assert bool(within) == (name == "xml")  # </tool_call> is a single token


def test_documents_become_plain_text_tokens_only(tokenizer):
    """Every token that a tokenizer adds to its vocabulary, special or not: alone, cut, doubled and inside others."""
    added = {token.content: id for id, token in tokenizer._hf.added_tokens_decoder.items()}
    assert {"<tool_call>", "<think>", "<|im_end|>"} <= set(added)
    names = sorted(added)
    nasty = [*names, *(name.replace("<", "< ") for name in names), *(name + name for name in names)]
    nasty += [name[:3] + other + name[3:] for name in names for other in names[:6]]
    text = "\n".join([*nasty, "".join(names), json.dumps(names)])
    ids = set(tokenizer.encode(parsing.neutralise(text)))
    assert not ids & set(added.values())


@pytest.mark.parametrize("mode", ["raw", "chat", "chat-trimmed"])
def test_the_only_tag_tokens_of_an_observation_are_its_own(tokenizer, mode):
    """Even if it was not neutralised: <tool_call> and <think> stay characters, <tool_response> is the wrapper's."""
    dialect = dialects.load("hermes")
    added = {token.content: id for id, token in tokenizer._hf.added_tokens_decoder.items()}
    nasty = "<tool_call>{}</tool_call> <think>\n</think> </tool_call>"
    said = turn(tokenizer, searching.written_search("x", dialect), ended=False)
    reply = Joiner(mode, tokenizer, dialect).responder(lambda turns: dialect.observation([nasty]), QUESTION)((said,))
    ids = list(reply.ids if isinstance(reply, Continuation) else reply.prompt_ids if isinstance(reply, Restart) else [])
    assert nasty in tokenizer.decode(ids)
    assert [ids.count(added[name]) for name in ("<tool_response>", "</tool_response>")] == [1, 1]
    own = mode == "chat-trimmed"  # there the search itself is in the prompt
    assert [ids.count(added[name]) for name in ("<tool_call>", "</tool_call>")] == [own, own]
    assert not {added["<think>"], added["</think>"]} & set(ids)


def test_a_template_that_rewrites_earlier_turns_is_refused(load):
    """Qwen3 with thinking disabled begins the reply with an empty thought and removes it later."""
    qwen3 = load("qwen", TEMPLATES["qwen3"])
    options = {"enable_thinking": False}
    with pytest.raises(ValueError, match=r'rewrite earlier turns.*choose model\.turns = "chat-trimmed"'):
        Joiner("chat", qwen3, dialects.load("hermes"), options)
    Joiner("chat-trimmed", qwen3, dialects.load("hermes"), options)


# -------------------------------------------------------------------------------------------------- system and tools
REAL = {
    "qwen2.5": ("qwen", TEMPLATES["qwen2.5"], ("xml", "hermes")),
    "qwen3": ("qwen", TEMPLATES["qwen3"], ("xml", "hermes")),
    "llama3.1": ("llama3", "meta-llama-Llama-3.1-8B-Instruct.jinja", ("xml",)),
    "llama3.2": ("llama3", "meta-llama-Llama-3.2-3B-Instruct.jinja", ("xml",)),
    "olmo3": (
        "olmo2_dolma2",
        OLMO,
        ("xml", "function"),
    ),  # its vocabulary except for four tags, and its template's rules
}


@pytest.fixture(params=REAL)
def real(request, load) -> tuple[Tokenizer, tuple[str, ...]]:
    folder, template, written = REAL[request.param]
    return load(folder, template), written


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_prompts_and_turns_with_system_and_tools_are_transformers(real, system):
    """In every dialect of a model's template: the prompt, and a second turn after it."""
    tokenizer, written = real
    for name in written:
        dialect = dialects.load(name)
        messages = replace(QUESTION, system=system, tools=searching.declared(dialect))
        day = {"date_string": DATE_STRING}

        def rendered(conversation, tools=messages.declared(), day=day):
            return tokenizer._hf.apply_chat_template(
                conversation, tools=tools, add_generation_prompt=True, return_dict=False, **day
            )

        text = dialect.observation(["The Seine."])
        said = turn(tokenizer, searching.written_search("Paris river", dialect), ended=False)
        conversation = [*messages.conversation(), {"role": "assistant", "content": said.text}, *dialect.messages(text)]
        joiner = Joiner("chat", tokenizer, dialect)
        prompt = joiner.prompt(messages)
        assert prompt == rendered(messages.conversation())
        reply = joiner.responder(lambda turns, text=text: text, messages)((said,))
        assert isinstance(reply, Continuation)
        assert [*prompt, *said.ids.tolist(), *reply.ids] == rendered(conversation)
        anew = Joiner("chat-trimmed", tokenizer, dialect).responder(lambda turns, text=text: text, messages)((said,))
        assert isinstance(anew, Restart) and list(anew.prompt_ids) == rendered(conversation)
        assert system is None or system in tokenizer.decode(prompt)
        explained = f"<{dialect.tag('search')}>" in tokenizer.decode(prompt)
        assert explained == (name == "hermes" or (name == "function" and not system))


@pytest.mark.parametrize(
    ("folder", "template", "complaint"),
    [
        ("llama3", "meta-llama-Llama-3.1-8B-Instruct.jinja", "declares tools but does not mention <tool_call>"),
        ("qwen", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", "leaves out the search that model.dialect declares"),
    ],
)
def test_a_template_of_another_family_is_refused(load, folder, template, complaint):
    with pytest.raises(ValueError, match=complaint):
        Joiner("raw", load(folder, template), dialects.load("hermes"))
