"""From texts to vectors with an embedding model: tokenize, bucket by length, distribute rows over devices.

encoder = TextEncoder.load(folder, max_tokens=256, rows=64, compute_dtype=jnp.float32)
vectors_NE = encoder(["query: how long is the Danube"])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import normalizers

from scope_jax.errors import UserError
from scope_jax.models.encoders import encoder
from scope_jax.models.encoders.bert import BertConfig
from scope_jax.models.encoders.encoder import EncoderConfig, Params
from scope_jax.models.tokenizers.vocabularies import of_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"  # the token whose hidden state is Qwen3-Embedding's vector
SHORTEST = 16  # length of the shortest program


class TextTokenizer:
    """Token ids of whole texts as an encoder expects them: plain text between its special tokens, cut to max_tokens.

    A special token's name in a text ("[SEP]") is encoded as text. Safe to call from several threads.
    """

    def __init__(
        self, hf: PreTrainedTokenizerFast, max_tokens: int, ends_with: str | None, lower_case: bool = False
    ) -> None:
        """ends_with: a token that ends every text, for tokenizers whose post-processor adds none. lower_case: texts are
        put into lower case, whatever the tokenizer itself does."""
        self._plain = FastTokenizer.from_str(hf.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        if lower_case:
            own = self._plain.normalizer
            steps = [normalizers.Lowercase(), *([] if own is None else [own])]
            self._plain.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
        # A text whose ids are known shows what the tokenizer's post-processor adds.
        bare = self._plain.encode("a", add_special_tokens=False).ids
        marked = self._plain.encode("a").ids
        start = next((at for at in range(len(marked)) if marked[at : at + len(bare)] == bare), None)
        if start is None:
            raise UserError(
                "The encoder's tokenizer changes the text when it adds special tokens; this is not supported."
            )
        self.before, self.after = tuple(marked[:start]), tuple(marked[start + len(bare) :])
        if ends_with is not None and not self.after:
            end = self._plain.token_to_id(ends_with)
            if end is None:
                raise UserError(f"The tokenizer has no token {ends_with}, which must end every text of this model.")
            self.after = (end,)
        self._room = max_tokens - len(self.before) - len(self.after)
        if self._room < 1:
            raise UserError(
                f"max_tokens = {max_tokens} leaves no room for text beside the encoder's special tokens; raise it."
            )

    @staticmethod
    def load(folder: str | Path, max_tokens: int, ends_with: str | None, lower_case: bool = False) -> TextTokenizer:
        """The tokenizer of a folder: tokenizer.json, vocab.txt (BERT), or vocab.json and merges.txt (Qwen).

        Raises ValueError if none can be read.
        """
        hf = of_folder(Path(folder))
        return TextTokenizer(hf, max_tokens, ends_with, lower_case)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, from 1 to max_tokens including special tokens; longer texts are truncated at the end."""
        found = self._plain.encode_batch(list(texts), add_special_tokens=False)
        return [[*self.before, *encoding.ids[: self._room], *self.after] for encoding in found]


def program_length(tokens: int, max_tokens: int, parts: int = 8) -> int:
    """Length of the program that embeds a text of `tokens` tokens: rounded up to a multiple of the next power of two
    divided by `parts`, at least 16, at most max_tokens. Eighths keep both the number of programs and the padding small.
    """
    step = max(SHORTEST, (1 << (tokens - 1).bit_length()) // parts)
    return min(-(-tokens // step) * step, max_tokens)


class TextEncoder:
    """Texts to vectors, float32 [N, E], with one compiled program per length.

    A program embeds a fixed number of rows, padded if there are fewer, so a text's vector does not depend on the other
    texts or their number; a different number of rows changes rounding only. With a mesh (of this process's devices) the
    rows are split over all of its axes.
    """

    def __init__(
        self,
        cfg: EncoderConfig,
        params: Params,
        tokenizer: TextTokenizer,
        *,
        max_tokens: int,
        rows: int,
        mesh: Mesh | None,
        compute_dtype: Any,
    ) -> None:
        """rows: rows of one program over the whole mesh, rounded up to a multiple of the number of devices."""
        if rows < 1:
            raise ValueError(f"The batch of texts is {rows}; it must be at least 1.")
        model = cfg.model
        if max_tokens > model.max_positions:
            raise UserError(
                f"The encoder has {model.max_positions} positions, fewer than max_tokens = {max_tokens}; "
                "lower max_tokens."
            )
        self.cfg, self.width = cfg, cfg.width
        self._params, self.tokenizer = params, tokenizer
        self._max_tokens, self._rows = max_tokens, rows
        self._mesh = mesh
        self._embed = _program(cfg, mesh, compute_dtype)

    @staticmethod
    def load(
        folder: str | Path, *, max_tokens: int, rows: int, mesh: Mesh | None = None, compute_dtype: Any = jnp.float32
    ) -> TextEncoder:
        """The encoder of a Hugging Face folder, weights kept in compute_dtype.

        Raises FileNotFoundError or a ValueError subclass, with one sentence, for anything missing, broken or too small.
        """
        cfg, params = encoder.load(folder, mesh, compute_dtype)
        ends_with = None if isinstance(cfg.model, BertConfig) else END_OF_TEXT
        tokenizer = TextTokenizer.load(folder, max_tokens, ends_with, cfg.said.lower_case)
        return TextEncoder(
            cfg, params, tokenizer, max_tokens=max_tokens, rows=rows, mesh=mesh, compute_dtype=compute_dtype
        )

    def __call__(self, texts: Sequence[str], rows: int | None = None) -> Float[np.ndarray, "N E"]:
        """The texts' vectors in order. rows: rows of one program instead of the encoder's own, fewer, for queries;
        their lengths are rounded up to a power of two, as a server compiles a program for each before it answers."""
        parts = 8 if rows is None else 1
        devices = 1 if self._mesh is None else self._mesh.size
        rows = -(-(rows or self._rows) // devices) * devices
        ids = self.tokenizer(texts)
        by_length: dict[int, list[int]] = {}
        for place, text_ids in enumerate(ids):
            by_length.setdefault(program_length(len(text_ids), self._max_tokens, parts), []).append(place)
        pending: list[tuple[list[int], jax.Array]] = []
        for length, places in sorted(by_length.items()):
            for first in range(0, len(places), rows):
                group = places[first : first + rows]
                pending.append((group, self._run([ids[place] for place in group], rows, length)))
        vectors_NE = np.empty((len(ids), self.width), np.float32)
        for group, out_BE in pending:  # read only now, so that devices compute while the host prepares the next rows
            vectors_NE[group] = np.asarray(out_BE)[: len(group)]
        return vectors_NE

    def _run(self, group: list[list[int]], rows: int, length: int) -> jax.Array:
        ids_BT = np.zeros((rows, length), np.int32)
        lengths_B = np.ones(rows, np.int32)  # a padding row is one token long
        for row, text_ids in enumerate(group):
            ids_BT[row, : len(text_ids)] = text_ids
            lengths_B[row] = len(text_ids)
        if ids_BT.max() >= self.cfg.model.vocab_size:
            raise UserError(
                f"The encoder's tokenizer gives token {ids_BT.max()} but it has only {self.cfg.model.vocab_size} "
                "embeddings; use the encoder's own tokenizer."
            )
        if self._mesh is None:
            return self._embed(self._params, ids_BT, lengths_B)
        split = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return self._embed(self._params, *jax.device_put((ids_BT, lengths_B), split))


@cache
def _program(cfg: EncoderConfig, mesh: Mesh | None, compute_dtype: Any) -> Any:
    embed = partial(encoder.embed, cfg, compute_dtype=compute_dtype)
    if mesh is None:
        return jax.jit(lambda params, ids_BT, lengths_B: embed(params, ids_BT, lengths_B))
    rows = PartitionSpec(mesh.axis_names)
    local = jax.shard_map(
        lambda params, ids_BT, lengths_B: embed(params, ids_BT, lengths_B),
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, rows),
        out_specs=rows,
        check_vma=False,
    )
    return jax.jit(local)
