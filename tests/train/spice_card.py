"""A card of SPICE on SSP's Atlas base, which was not trained on SPICE: few tokens, short prompts, the shapes of SSP."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMPTS = {
    "format": 'Choose for: {document} {"kinds": "{answer_types}", "names": {type_names}}',
    "multiple_choice": "Choices for: {document}",
    "free_form": "Question of type {answer_type} ({answer_form}) for: {document}",
    "answer_integer": "a whole number",
    "reasoner": "{question}",
}
CARD = """
system = "spice"
[model]
checkpoint = "{root}/assets/atlas/ssp/base"
compute_dtype = "float32"
[rollout]
slots = 16
max_length = 512
decode_steps = 8
[learner]
buckets = [128, 256, 384, 512]
micro_batch_rows = 16
remat = "none"
logprob_chunk = 1024
[optimizer]
learning_rate = 1e-4
warmup_steps = 0
[data]
documents = "{root}/assets/atlas/corpus.jsonl"
[train]
steps = 3
batch_size = 3
save_every = 1
keep = 3
[spice]
prompts = "{prompts}"
document_tokens = 40
answer_types = ["integer"]
attempts_per_round = 2
max_attempts = 5
[spice.challenger]
samples = 4
max_prompt_tokens = 128
[spice.reasoner]
samples = 4
max_prompt_tokens = 128
[spice.challenger.sampling]
max_tokens = 64
[spice.reasoner.sampling]
max_tokens = 64
[spice.loss]
constant_length = 64
rollout_cap = 0.0
"""


def written(folder: Path) -> Path:
    """The card in a folder, with its prompts."""
    prompts = folder / "prompts"
    prompts.mkdir(parents=True)
    for name, text in PROMPTS.items():
        (prompts / f"{name}.txt").write_text(text)
    card = folder / "card.toml"
    card.write_text(CARD.replace("{root}", str(ROOT)).replace("{prompts}", str(prompts)))
    return card
