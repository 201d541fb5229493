"""The Atlas tokenizer: byte-level BPE in which every name, word and tag of the world is one token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAG = r" ?</?(?:think|search|answer|question|information|task|rubrics|rubric|score)>"
ITEM = r'<rubric priority="(?:critical|important|bonus)">'
PIECES = TAG + "|" + ITEM + r"| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+"
MERGES = 256  # learned merges; used only for text that is not a whole word of the world
WORD_COUNT = 2  # words that occur at least this often in the texts become tokens
TEMPLATE = """{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def _splitter(own: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    pattern = "|".join((*own, PIECES))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(texts: Iterable[str], names: Iterable[str], own: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE over `texts` in which every piece of `names`, with its leading space, is one token.

    own: patterns of a game's further single tokens, such as the punctuation of its JSON; the first match applies.

    The merges are learned from the texts; whole words are then added as entries (`ignore_merges`: a piece in the
    vocabulary is one token), so that the word k words back is also k tokens back.
    """
    texts = list(texts)
    splitter = _splitter(own)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = splitter
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    vocabulary = dict(sorted(learned["vocab"].items(), key=lambda item: item[1]))
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    words = {piece for piece, count in counts.items() if count >= WORD_COUNT}
    words |= {piece for name in names for piece, _ in splitter.pre_tokenize_str(f" {name}")}
    for word in sorted(words):
        vocabulary.setdefault(word, len(vocabulary))
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, with the chat template, as in a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
