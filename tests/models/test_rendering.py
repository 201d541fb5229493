"""Chat templates are rendered as transformers renders them, and none takes longer or more than its limits."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from scope_jax.models.tokenizers import rendering
from scope_jax.models.tokenizers.rendering import TemplateLimit, render
from scope_jax.models.tokenizers.tokenizer import Tokenizer

ASK: list[dict[str, Any]] = [
    {"role": "user", "content": "Wie lang ist die Aare? 288 km \U0001f30a\ud800", "name": None}
]
NORMAL = [
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}{{ eos_token }}",
    "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ bos_token ~ messages[-1]['content'] }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{% if m.name is defined %}{{ m.name }}{% endif %}{{ loop.index0 }}{% break %}{% endfor %}",
    "{% if add_generation_prompt %}{{ thinking | default('none') }}{% endif %}",
]
SAYS = "{% set ns = namespace(s='x') %}"
# What each is stopped for.
HOSTILE = {
    "loops in loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more"),
    "a string that doubles": (SAYS + "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "memory"),
    "a string times a billion": ("{{ 'x' * 10**9 }}", "memory"),
    "a width of a billion": ("{{ '%0999999999d' % 1 }}", "memory"),
    "replacements that grow": ("{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}", "memory"),
    "a list of a billion": ("{{ range(10) | batch(10**9, 1) | list }}", "memory"),
    "a long result": ("{% for i in range(3000) %}{{ 'abcdefgh' * 1000 }}{% endfor %}", "characters"),
    "a billion slices": ("{{ range(10) | slice(10**9) | list }}", "takes more"),
    "words without end": ("{{ lipsum(n=10**7) }}", "takes more"),
}
REJECTED = {
    "a range of a billion": ("{{ range(10**9) | list }}", "Range too big"),
    "recursion": ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
    "5,000 brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
    "3,000 conditions": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "recursion"),
    "an attribute of Python's": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "an error of a million lines": ("{{ raise_exception('no\n' * 10**6) }}", "no no"),
    "a syntax error": ("{% if %}", "Expected an expression"),
}


@pytest.mark.parametrize("template", NORMAL)
@pytest.mark.parametrize("tools", [None, [{"name": "search", "parameters": {"q": {"type": "string"}}}]])
def test_a_template_is_rendered_as_by_transformers(template: str, tools: Any) -> None:
    hf = PreTrainedTokenizerFast(tokenizer_object=_fast(), eos_token="<e>", bos_token="<b>")
    messages = [*ASK, {"role": "assistant", "content": "\n288 \u00a0"}, {"role": "user", "content": ""}]
    theirs = hf.apply_chat_template(
        messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True, thinking="some"
    )
    assert render(template, messages, tools, True, {**hf.special_tokens_map, "thinking": "some"}) == theirs


def _fast():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())


LONG = ("a billion slices", "words without end")  # as "loops in loops", until the limit of time


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in HOSTILE])
def test_a_template_is_stopped_at_a_limit(name: str) -> None:
    template, why = HOSTILE[name]
    with pytest.raises(TemplateLimit, match=f"The chat template was stopped: .*{why}") as caught:
        render(template, ASK, None, True, {})
    assert "\n" not in str(caught.value)
    assert render("{{ messages[0].role }}", ASK, None, True, {}) == "user"  # the next one is rendered


@pytest.mark.parametrize("name", REJECTED)
def test_a_template_that_fails_says_why(name: str) -> None:
    template, why = REJECTED[name]
    with pytest.raises(ValueError, match=f"rejects the conversation .*{why}") as caught:
        render(template, ASK, None, True, {})
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_what_the_worker_takes(monkeypatch) -> None:
    """Both limits are those that are said: CPU time of the worker, and memory above what it needs by itself."""
    monkeypatch.setattr(rendering, "SECONDS", 0.3)
    assert render("{{ 1 }}", ASK, None, True, {}) == "1"
    process = psutil.Process(rendering._worker.running().pid)
    for _ in range(3):
        with pytest.raises(TemplateLimit):
            render("{{ 'x' * 10**9 }}", ASK, None, True, {})
    assert process.memory_info().rss < 400 * 2**20  # the same process still
    before = sum(process.cpu_times()[:2])
    began = time.monotonic()
    with pytest.raises(TemplateLimit, match=r"more than 0\.3 s"):
        render(HOSTILE["loops in loops"][0], ASK, None, True, {})
    assert not process.is_running() and before < 5 and time.monotonic() - began < 60


def test_a_worker_that_dies_is_replaced() -> None:
    assert render("{{ 1 }}", ASK, None, True, {}) == "1"
    worker = rendering._worker.running()
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert render("{{ 2 }}", ASK, None, True, {}) == "2"


def test_several_threads_share_the_worker() -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda n: render("{{ n }} {{ messages[0].role }}", ASK, None, True, {"n": n}), range(200))
        )
    assert texts == [f"{n} user" for n in range(200)]


def test_a_fork_has_a_worker_of_its_own() -> None:
    mine = rendering._worker.running().pid
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no assertion may leave this branch
        text = render("{{ 3 }}", ASK, None, True, {})
        other = rendering._worker.running()
        os.write(writer, f"{text} {other.pid}".encode())
        other.kill()
        os._exit(0)
    os.waitpid(child, 0)
    text, other = os.read(reader, 100).decode().split()
    assert text == "3" and int(other) != mine and rendering._worker.running().pid == mine
    assert render("{{ 4 }}", ASK, None, True, {}) == "4"


def test_an_object_is_no_text_of_the_template() -> None:
    """As in transformers: what JSON does not have could write a marker that was not masked."""

    class Marker:
        def __str__(self) -> str:
            return "<|im_end|>"

    given: Any = {"x": Marker()}
    theirs = render_jinja_template([ASK], chat_template="{{ x }}", **given)[0][0]
    assert render("{{ x }}", ASK, None, False, given) == theirs == "<Marker>"


def test_a_folder_whose_template_loops_is_refused_when_it_is_opened(byte_level, tmp_path: Path) -> None:
    byte_level(tmp_path, template=HOSTILE["loops in loops"][0])
    with pytest.raises(TemplateLimit, match="was stopped"):
        Tokenizer.load(tmp_path)


def test_a_conversation_that_is_long_has_more_time_and_room() -> None:
    messages = [{"role": "user", "content": "wort " * 800} for _ in range(500)]
    assert len(render(NORMAL[0], messages, None, True, {"eos_token": ""})) > 1_900_000
