"""A decoder as data: its layers, each a mixer of tokens and a feed-forward part, and what all layers share.

`models.decoder.kinds` computes what is described here, and `models.files.families` reads and writes it as Hugging Face
config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scope_jax.errors import UserError
from scope_jax.models.kernels.rope import Rope

QkNorm = Literal["none", "head", "width"]
Activation = Literal["silu", "gelu_tanh"]
TABLE_MULTIPLE = 512  # 8 rows, the tile of a TPU, on each of 64 devices
TABLE_PADDED = 2**14  # the padding of smaller vocabularies would be a considerable part of the work


@dataclass(frozen=True)
class QueryScaling:
    """Queries times 1 + beta · ln(1 + ⌊position / original_positions⌋), so that attention over long texts stays sharp
    (Llama 4, Ministral 3)."""

    beta: float
    original_positions: int


@dataclass(frozen=True)
class Attention:
    """Softmax attention.

    rope: rotary positions, None for none. window: the number of tokens a token attends to, itself included, None for
    all. qk_norm: RMSNorm of queries and keys before rotation: over each "head", over the whole projection's "width", or
    "none". qkv_bias, output_bias: biases on the projections. scale: of the scores q · k; None: 1/√h. values: a
    projection of their "own", or that of the "keys", before their norm. v_norm: RMSNorm of each value, without weights.
    gate: the query projection has as many numbers again for each head, behind its query; the head's result is
    multiplied by their sigmoid. sinks: a learned logit of each head in the sum of its softmax (gpt-oss;
    `models.kernels.attention`). source: number of the layer whose keys and values this one attends to, None: it has its
    own (Gemma 4's E2B and E4B).
    """

    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # h
    rope: Rope | None
    window: int | None = None
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    query_scaling: QueryScaling | None = None
    gate: bool = False
    scale: float | None = None
    values: Literal["own", "keys"] = "own"
    v_norm: bool = False
    sinks: bool = False
    source: int | None = None

    def __post_init__(self) -> None:
        _positive(self, "num_heads", "num_kv_heads", "head_dim")
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"Attention.num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})."
            )
        if self.head_dim % 2:
            raise UserError(f"Attention.head_dim ({self.head_dim}) must be even for rotary embeddings.")
        if self.scale is not None and self.qk_norm != "head":
            raise UserError('Attention.scale needs qk_norm = "head": the norm of the queries multiplies by it.')
        if self.values == "keys" and self.qk_norm == "width":
            raise UserError(
                'Attention.values = "keys" needs keys before their norm; with qk_norm = "width" there are none.'
            )
        if self.window is not None and self.window < 1:
            raise UserError(f"Attention.window is {self.window}, a window below 1 token.")


@dataclass(frozen=True)
class Delta:
    """Gated DeltaNet (`models.decoder.delta`). Each key head has queries and keys, and serves num_heads / num_key_heads
    heads.

    taps: tokens that the convolution before it sees, the token itself included. norm_eps: of the norm of its results.
    doubled: what is written at a key replaces up to twice the value that is there, not up to once.
    """

    num_key_heads: int  # K
    num_heads: int  # H
    key_dim: int  # h
    value_dim: int  # e
    taps: int
    norm_eps: float
    doubled: bool = False

    def __post_init__(self) -> None:
        _positive(self, "num_key_heads", "num_heads", "key_dim", "value_dim", "taps")
        if self.num_heads % self.num_key_heads:
            raise UserError(
                f"Delta.num_heads ({self.num_heads}) must be a multiple of num_key_heads ({self.num_key_heads})."
            )


Mixer = Attention | Delta


@dataclass(frozen=True)
class Dense:
    """A gated layer of this width: SwiGLU, or GeGLU with the tanh approximation."""

    width: int  # F
    activation: Activation = "silu"

    def __post_init__(self) -> None:
        _positive(self, "width")


@dataclass(frozen=True)
class Experts:
    """Gated layers of this width, as `Dense`, of which a router picks some for each token.

    normalised: the weights of the picked experts are divided by their sum, which makes them the softmax of the picked
    logits alone. activation: of gate and up, see `moe.activated`. bias: router and experts have biases. kernels:
    whether the platform's kernels may compute them (no property of the model: `run.kernels` says so). shared: width of
    one that every token has, times the sigmoid of a gate of its own, 0 for none.
    """

    width: int  # F
    count: int  # X
    picked: int  # k
    normalised: bool = False
    kernels: bool = True
    activation: Activation | Literal["clamped"] = "silu"
    bias: bool = False
    shared: int = 0

    def __post_init__(self) -> None:
        _positive(self, "width", "count")
        if not 0 < self.picked <= self.count:
            raise UserError(f"Experts.picked ({self.picked}) must be 1 to count ({self.count}).")


@dataclass(frozen=True)
class Parallel:
    """A dense layer and experts side by side, each with norms of its own, and a scale for each expert (Gemma 4)."""

    dense: Dense
    experts: Experts


Feed = Dense | Experts | Parallel


@dataclass(frozen=True)
class Layer:
    """One layer. norms: "pre" x + f(norm(x)), "post" x + norm(f(x)), "both" x + norm(f(norm(x))).
    inputs: size of a vector that each layer gets of each token, 0 for none (`transformer.layer_inputs`). scalar: the
    layer's result is multiplied by a number that is not trained."""

    mixer: Mixer
    feed: Feed
    norms: Literal["pre", "post", "both"] = "pre"
    scalar: bool = False
    inputs: int = 0  # p

    @property
    def experts(self) -> Experts | None:
        """Its experts, None if it has none."""
        feed = self.feed
        return feed if isinstance(feed, Experts) else feed.experts if isinstance(feed, Parallel) else None

    @property
    def weights(self) -> Layer:
        """This layer without what needs no weights of its own: layers that are equal in it are stacked
        (`models.decoder.stacks`)."""
        if isinstance(self.mixer, Delta):
            return self
        source = None if self.mixer.source is None else 0
        mixer = replace(self.mixer, rope=None, window=None, query_scaling=None, scale=None, source=source)
        return replace(self, mixer=mixer)

    @property
    def attention(self) -> Attention:
        """The mixer of a layer with attention."""
        assert isinstance(self.mixer, Attention)
        return self.mixer


@dataclass(frozen=True)
class ModelConfig:
    """Shape and conventions of one decoder.

    architecture: our name of the family. max_positions: the model's longest context. tie_embeddings: the output table
    is the embedding table. norm_offset: RMS norms multiply by this + w. embed_scale: embeddings times this, rounded to
    their dtype. final_softcap: logits are c tanh(x / c), None: x.
    """

    architecture: str
    vocab_size: int  # V
    width: int  # D
    layers: tuple[Layer, ...]
    norm_eps: float
    tie_embeddings: bool
    max_positions: int
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    final_softcap: float | None = None

    def __post_init__(self) -> None:
        _positive(self, "vocab_size", "width", "max_positions")
        if not self.layers:
            raise UserError("ModelConfig.layers is empty; a decoder has at least one layer.")
        if not self.attention_layers:
            raise UserError("ModelConfig.layers has no layer with attention; a decoder has at least one.")
        for number in self.attention_layers:
            self._check_source(number)
        if len({layer.inputs for layer in self.layers}) > 1:
            raise UserError("ModelConfig.layers differ in inputs; the vectors of all layers have one size.")

    def _check_source(self, number: int) -> None:
        mine = self.layers[number].attention
        if mine.source is None:
            return
        theirs = self.layers[mine.source].mixer if 0 <= mine.source < number else None
        if not isinstance(theirs, Attention) or replace(theirs, source=mine.source) != mine:
            raise UserError(
                f"ModelConfig.layers: layer {number} attends to the keys of layer {mine.source}, which must be an "
                "earlier one with the same attention."
            )
        if theirs.source is not None:
            raise UserError(f"ModelConfig.layers: layer {mine.source}, whose keys layer {number} uses, has none.")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def num_experts(self) -> int:
        """X, 0 if no layer has experts."""
        return max(0 if layer.experts is None else layer.experts.count for layer in self.layers)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with experts."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.experts is not None)

    @property
    def picks(self) -> tuple[int, int]:
        """(layers with experts, experts that each picks for a token)."""
        return len(self.expert_layers), max(layer.experts.picked for layer in self.layers if layer.experts is not None)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with attention; the others keep a state of fixed size of a text."""
        return tuple(number for number, layer in enumerate(self.layers) if isinstance(layer.mixer, Attention))

    @property
    def cache_layers(self) -> tuple[int, ...]:
        """The numbers of the layers that keep keys and values of their own."""
        return tuple(number for number in self.attention_layers if self.layers[number].attention.source is None)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer with attention."""
        return tuple(self.layers[number].attention.window for number in self.attention_layers)

    @property
    def table_rows(self) -> int:
        """Rows of the embedding and output tables: V, rounded up to a multiple of TABLE_MULTIPLE from TABLE_PADDED on.

        Any usual number of devices then divides them, and TPU compilers scatter their gradients natively. No token has
        an id from V on, and log-probs and sampling leave these rows out.
        """
        padded = -(-self.vocab_size // TABLE_MULTIPLE) * TABLE_MULTIPLE
        return padded if self.vocab_size >= TABLE_PADDED else self.vocab_size


def differences(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Names of the figures in which two models differ: of the models, then of their layers."""
    mine, theirs = vars(one), vars(other)
    found = [name for name in mine if name != "layers" and mine[name] != theirs[name]]
    if one.num_layers != other.num_layers:
        return [*found, "num_layers"]
    for a, b in zip(one.layers, other.layers, strict=True):
        for x, y in ((a.mixer, b.mixer), (a.feed, b.feed)):
            if type(x) is not type(y):
                found.append("kinds of layers")
            else:
                found += [name for name in vars(x) if vars(x)[name] != vars(y)[name]]
        found += [name for name in ("norms", "scalar", "inputs") if vars(a)[name] != vars(b)[name]]
    return list(dict.fromkeys(found))


def _positive(data: object, *names: str) -> None:
    for name in names:
        if vars(data)[name] < 1:
            raise UserError(f"{type(data).__name__}.{name} is {vars(data)[name]}; it must be at least 1.")
