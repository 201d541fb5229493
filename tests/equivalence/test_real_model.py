"""A trained model of 135M parameters: greedy replies of the engine are those of transformers, both in float32.

The folder is written by `python -m tools.smollm2`; SCOPE_JAX_SMOLLM2 names it. Two roundings may choose otherwise where
the two best logits are as good as equal: there, and nowhere else, a reply may part from the other, and few do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from benchmarks.peers.cases import Numbers
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.files.weights import load_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.text import dialects
from scope_jax.text.messages import Messages

pytestmark = pytest.mark.slow

VARIABLE = "SCOPE_JAX_SMOLLM2"
TOKENS = 24  # of a reply, at most
LONGEST = 128  # of a prompt with its reply
TIE = 1e-3  # logits that differ by less are as good as equal
MOST_TIES = 3
PROMPTS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "What is 7 + 5?",
    "Write one sentence about the sea.",
    "Who wrote Hamlet?",
    "What do bees make?",
    "Translate 'good morning' into Spanish.",
    "How many days has a week?",
    "What is the opposite of hot?",
    "Give me a name for a cat.",
    "Why is the sky blue?",
    "What is the largest planet?",
    "List two fruits and two vegetables.",
    "What language is spoken in Brazil?",
    "Finish the sentence: The early bird",
    "What is 12 times 3?",
    "Write a line of Python that prints hello.",
    "Which animal barks?",
    "What is water made of?",
    "Say thank you in German.",
    "What comes after Tuesday?",
    "Is the sun a star?",
    "How do I boil an egg?",
    "Name a river in Egypt.",
    "What is a noun?",
    "Write a haiku about snow.",
    "Which is heavier, a kilogram of iron or of feathers?",
    "What is the past tense of 'go'?",
    "Describe a bicycle to a child.",
    "What is the square root of 81?",
    "Who painted the Mona Lisa?",
    "Give one reason to read books.",
    "What is the boiling point of water in Celsius?",
    "Which continent is Kenya in?",
    "Write a title for a story about a lost key.",
    "What does a thermometer measure?",
    "Explain gravity in one sentence.",
    "How many legs has a spider?",
    "What is the chemical symbol of gold?",
    "Write an apology for being late.",
    "Which month has 28 days in most years?",
    "What is the plural of 'mouse'?",
    "Suggest a breakfast without eggs.",
    "Where do penguins live?",
    "What is 100 minus 37?",
    "Name an instrument with strings.",
    "What is photosynthesis?",
    "Rewrite politely: Give me the book.",
    "Which ocean is between Europe and America?",
    "Tell me a short joke.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    place = os.environ.get(VARIABLE)
    if not place:
        pytest.skip(f"{VARIABLE} names no folder of SmolLM2-135M-Instruct")
    return Path(place)


def prompts_of(folder: Path) -> list[list[int]]:
    """The prompts as ids, through the chat template."""
    joiner = Joiner("chat", Tokenizer.load(folder), dialects.load("xml"), {})
    return [list(joiner.prompt(Messages(text))) for text in PROMPTS]


def greedy(folder: Path, prompts: list[list[int]], end: int) -> list[list[int]]:
    """The engine's replies."""
    cfg, params = load_hf(folder, dtype=jnp.float32)
    config = EngineConfig(
        slots=25, max_length=LONGEST, decode_steps=8, compute_dtype=jnp.float32, prefill_tokens=LONGEST
    )
    engine = Engine(cfg, config, make_mesh(MeshConfig(1, 1, 1)), Columns(LONGEST))
    rollouts = LocalRollouts(engine, Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(params)
    sampling = SamplingParams(0.0, 0, 1.0, TOKENS, (), (end,), False)
    completions = rollouts.run([Request(prompt, sampling, None, None, 1, None) for prompt in prompts])
    return [completion.ids_T.tolist() for completion in completions]


def gap(torch: Any, model: Any, before: list[int], ours: int, theirs: int) -> float:
    """How far apart the logits of two tokens are after others, the second of which transformers chose. They have to be
    the two best ones."""
    with torch.no_grad():
        best = model(torch.tensor([before])).logits[0, -1].topk(2)
    assert {ours, theirs} == set(best.indices.tolist())
    return float(best.values[0] - best.values[1])


def test_greedy_replies_are_those_of_transformers(folder: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    template = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template
    prompts, end = prompts_of(folder), model.config.eos_token_id
    ties = []
    for text, prompt, ours in zip(PROMPTS, prompts, greedy(folder, prompts, end), strict=True):
        turn = [{"role": "user", "content": text}]
        assert prompt == template(turn, add_generation_prompt=True, return_dict=False)
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)
        with torch.no_grad():
            whole = model.generate(
                ids, attention_mask=seen, max_new_tokens=TOKENS, do_sample=False, eos_token_id=end, pad_token_id=end
            )
        theirs = whole[0, len(prompt) :].tolist()
        pairs = zip(ours, theirs, strict=False)
        if (place := next((i for i, (one, other) in enumerate(pairs) if one != other), None)) is None:
            assert ours == theirs, text  # of equal length, too
            continue
        ties.append((text, place, gap(torch, model, [*prompt, *theirs[:place]], ours[place], theirs[place])))
    print(f"{len(PROMPTS)} prompts, {len(ties)} replies part at a tie: {ties}")
    assert all(difference <= TIE for _, _, difference in ties), ties
    assert len(set(PROMPTS)) == 50 and len(ties) <= MOST_TIES
