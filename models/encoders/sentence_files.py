"""What sentence-transformers' files of a folder say about the way from a text to its vector.

modules.json and the modules' folders, sentence_bert_config.json and config_sentence_transformers.json, as
sentence-transformers 5 reads them. What cannot be honoured is refused in one sentence:

    modules.json        one Transformer in the folder itself, one Pooling, any number of Dense, at most one Normalize
    pooling             cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken; not several, nor without prompt
    dense               weight and bias, Identity, Tanh, ReLU, GELU or Sigmoid; no residual connection, no pickle
    sentence_bert       max_seq_length (or the tokenizer's model_max_length), do_lower_case; no config_args, other tasks
    prompts             `query`; of passages `document`, `passage` or `corpus`; else the default prompt, else none
    similarity_fn_name  cosine, dot; euclidean only after Normalize. Vectors have length one unless there is no
                        Normalize and the score is `dot`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from scope_jax.errors import UserError
from scope_jax.models.fields import MOST, count, cut, flag, read_json, read_object, table, within

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
MOST_MODULES = 64
NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # of the first file found
SETTINGS = tuple(f"sentence_{name}_config.json" for name in NAMES)
PASSAGES = ("document", "passage", "corpus")  # names of a passage's prompt, the first one that there is

Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt_len", "weightedmean"]
POOLINGS: dict[str, Pooling] = {
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
Activation = Literal["Identity", "Tanh", "ReLU", "GELU", "Sigmoid"]


@dataclass(frozen=True)
class DenseModule:
    """A layer after the pooling: activation(x · weight + bias). folder: that of its weights, in the model's."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: Activation


@dataclass(frozen=True)
class Modules:
    """From hidden states to a vector: pooling, dense layers, and whether the result is L2-normalised."""

    pooling: Pooling
    dense: tuple[DenseModule, ...]
    normalize: bool


@dataclass(frozen=True)
class Said:
    """What a folder says about its texts; None: nothing.

    max_tokens: the longest text, special tokens included; lower_case: texts are put into lower case first; query and
    passage: prefixes; prompts: names of all prompts; similarity: of two vectors, "cosine", "dot" or "euclidean".
    """

    max_tokens: int | None
    lower_case: bool
    query: str | None
    passage: str | None
    prompts: tuple[str, ...]
    similarity: str | None


def listed(folder: Path) -> list[tuple[str, str]] | None:
    """(type, folder inside the model's) of the modules of modules.json in order, as "Pooling", "1_Pooling"; "" is the
    model's folder itself. None without modules.json. Raises WeightsError or ValueError with one sentence.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, list) or not all(isinstance(module, Mapping) for module in found):
        raise UserError("modules.json is not a list of modules.")
    if len(found) > MOST_MODULES:
        raise UserError(f"modules.json lists {len(found)} modules; up to {MOST_MODULES} are supported.")
    pairs = [(str(module.get("type", "")).rsplit(".", 1)[-1], module.get("path") or "") for module in found]
    return [(kind, str(place and within(folder, place, path).relative_to(folder))) for kind, place in pairs]


def modules(folder: Path, width: int) -> Modules | None:
    """The modules after a transformer of `width`; None without modules.json. Raises WeightsError or ValueError."""
    if (found := listed(folder)) is None:
        return None
    kinds = [kind for kind, _ in found]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Dense", "Normalize"}:
        raise UserError(
            f"modules.json has a module {cut(min(unknown))}; only Transformer, Pooling, Dense and Normalize are "
            "supported."
        )
    layers = kinds.count("Dense")
    if kinds not in (["Transformer", "Pooling", *["Dense"] * layers, *last] for last in ([], ["Normalize"])):
        raise UserError(
            f"modules.json lists {cut(', '.join(kinds), 99) or 'nothing'}; supported are one Transformer, one Pooling, "
            "any number of Dense and at most one Normalize, in this order."
        )
    if found[0][1]:
        raise UserError(f"modules.json has the transformer in the folder {found[0][1]}; give a folder that holds it.")
    pooling = _pooling(folder, found[1][1], width)
    for _, place in found[2:]:
        config = _read(folder / place, "config.json")  # of a Normalize, older folders have none
        if any(config.get(f"module_{end}_name") not in (None, "sentence_embedding") for end in ("input", "output")):
            raise UserError(f"the module {place} works on something else than the pooled vector; this is unsupported.")
    dense = []
    for _, place in found[2 : 2 + layers]:
        dense.append(_dense(folder, place, dense[-1].outputs if dense else width))
    return Modules(pooling, tuple(dense), kinds[-1] == "Normalize")


def _pooling(folder: Path, place: str, width: int) -> Pooling:
    config = read_object(folder / place / "config.json")
    modes = config.get("pooling_mode")  # newer files name the mode itself, or several
    if modes is None:
        modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True] or "mean"
    modes = modes if isinstance(modes, list) else [modes]
    mode = FLAGS.get(str(modes[0]), str(modes[0])) if len(modes) == 1 else None
    if mode not in POOLINGS:
        named = cut(" and ".join(map(str, modes)))
        raise UserError(f"the pooling {named} in {place} is not supported; supported is one of {', '.join(POOLINGS)}.")
    if config.get("include_prompt", True) is not True:
        raise UserError(f"pooling without the prompt (include_prompt in {place}) is not supported.")
    for name in ("embedding_dimension", "word_embedding_dimension"):
        if config.get(name, width) != width:
            raise UserError(f"{place} pools vectors of {config[name]} numbers, but the model's width is {width}.")
    return POOLINGS[mode]


def _dense(folder: Path, place: str, width: int) -> DenseModule:
    config = read_object(folder / place / "config.json")
    try:
        inputs, outputs = count(config, "in_features"), count(config, "out_features")
        bias, residual = flag(config, "bias", True), flag(config, "use_residual", False)
    except ValueError as error:
        raise UserError(f"{place}/{error}") from None
    if inputs != width:
        raise UserError(f"the dense layer {place} takes {inputs} numbers, but gets {width}.")
    if residual:
        raise UserError(f"the dense layer {place} has a residual connection (use_residual); this is not supported.")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, name = str(activation).rpartition(".")
    if not f"{package}.".startswith("torch.nn.") or name not in get_args(Activation):
        known = ", ".join(get_args(Activation))
        raise UserError(
            f"the dense layer {place} has the activation {cut(str(activation))}; supported are torch's {known}."
        )
    return DenseModule(place, inputs, outputs, bias, cast(Activation, name))


def said(folder: Path) -> Said:
    """What the folder says about texts, prefixes and similarity. Raises WeightsError or ValueError."""
    settings = _read(folder, next((name for name in SETTINGS if (folder / name).is_file()), SETTINGS[0]))
    changes = next((name for name in ("config_args", "config_kwargs") if settings.get(name)), None)
    if changes or settings.get("transformer_task", "feature-extraction") != "feature-extraction":
        raise UserError(f"sentence_bert_config.json has {changes or 'transformer_task'}; this is not supported.")
    longest = settings.get("max_seq_length") or _read(folder, "tokenizer_config.json").get("model_max_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 1):
        raise UserError(
            f"the longest text (max_seq_length, model_max_length) is {cut(repr(longest))}; it must be a number."
        )
    contents = _read(folder, PROMPTS)
    try:
        lower_case, prompts = flag(settings, "do_lower_case", False), table(contents, "prompts")
    except ValueError as error:
        raise UserError(f"sentence-transformers' {error}") from None
    if wrong := [name for name, text in prompts.items() if not isinstance(text, str | None)]:
        raise UserError(f"{PROMPTS}: the prompt {cut(repr(wrong[0]))} is not a text.")
    usual = contents.get("default_prompt_name")
    if usual is not None and usual not in prompts:
        raise UserError(f"{PROMPTS}: default_prompt_name is {cut(repr(usual))}, but there is no such prompt.")
    similarity = contents.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot", "euclidean"):
        raise UserError(
            f"{PROMPTS}: similarity_fn_name {cut(repr(similarity))} is not supported; use cosine, dot or euclidean."
        )

    def prompt(*names: str) -> str | None:
        if not (folder / PROMPTS).is_file():
            return None
        order = [*names] if usual is None else [*names, usual]
        return next((prompts[name] for name in order if name in prompts), None) or ""

    return Said(
        max_tokens=None if longest is None else int(min(longest, MOST)),
        lower_case=lower_case,
        query=prompt("query"),
        passage=prompt(*PASSAGES),
        prompts=tuple(prompts),
        similarity=similarity,
    )


def _read(folder: Path, name: str) -> Mapping[str, Any]:
    return read_object(folder / name) if (folder / name).is_file() else {}
