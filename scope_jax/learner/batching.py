"""Packs episodes into arrays of fixed shapes: rows of tokens, and the trained positions in them.

A batch is M micro-batches of B rows of T tokens. Positions that predict a sampled token are listed separately, N slots
per micro-batch: hidden states are gathered there before the output projection, and all arrays of the loss have that
layout. All sizes come from small sets, so that few programs are compiled: T is one of the given buckets, M a power of
four from 16 on, of which `micro_batches` are real and computed, N a power of four (above 4,096 a number with
at most three significant bits). If all rows are to be one micro-batch, M is 1 and B a number with at most three
significant bits. Masks come from lengths, never from token ids.

The rows of a micro-batch, and its N slots, are divided evenly over the row shards of the mesh (data × fsdp); a slot
refers to the rows of its own shard. With a context axis the tokens of a row are in the order of its devices
(`models.decoder.context.token_order`), and the slots of a shard are divided over them: a slot is where its hidden state
is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from scope_jax.config import LearnerSection, LossCard
from scope_jax.errors import UserError
from scope_jax.learner.advantages import sampled_tokens
from scope_jax.learner.prefixes import Node, Piece, RowWork, alone, cheapest, packing_of, rows_of
from scope_jax.learner.splitting import has_term, trainable
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder.context import token_order
from scope_jax.models.kernels.packed import Packing

DEPTH = 1024  # tokens of context, by which the distance of sampler and trainer is reported
STALEST = 4  # steps, by which it is reported too, where steps overlap; staler tokens are counted with these
ROWS = ("ids", "positions", "ends")  # the arrays with an axis of tokens; the others have one of slots,
PICKED = "picked"  # but for this one, which has further axes
FEW_MICRO_BATCHES = 16  # their places cost memory only
FEW_SEQUENCES = 256
CHUNK = 128  # `learner.logprob_chunk` where it is left to us, but see `fitting`
FEW_SLOTS = 4096  # up to here padding costs less than compiling another program
Leaf = Any  # an array of the shape in its name; in other trees of this type a sharding, a PartitionSpec or a slice


class Batch(struct.PyTreeNode):
    """Packed rows of one optimiser step. If no episode has a row, all arrays are None and micro_batches is 0."""

    ids_MBT: Leaf
    positions_MBT: Leaf
    """Of the token in its datum, 0 in padding."""
    ends_MBT: Leaf
    """The place in the row behind the last token that continues this one (`models.kernels.masks`); of padding the
    next."""
    index_MN: Leaf
    """Flat index (row · T + t within the device's rows of this micro-batch, T being its tokens of a row) of the hidden
    state that predicts the target."""
    targets_MN: Leaf
    source_MN: Leaf
    """Index of the sampled token within the step, in datum order, -1 in empty slots."""
    mask_MN: Leaf
    """False in empty slots."""
    first_MN: Leaf
    """True at the first sampled token of an episode."""
    sequence_MN: Leaf
    """Number of the slot's episode, from 0."""
    length_MN: Leaf
    """Sampled tokens of that episode."""
    advantage_MN: Leaf
    """Of the slot's episode, and under a policy objective its token's credit."""
    behaviour_MN: Leaf
    """The engine's log-probs."""
    temperature_MN: Leaf
    """The slot's log-prob is of softmax(logits / temperature)."""
    weight_MN: Leaf
    """Factor of the slot's terms in the loss."""
    cell_MN: Leaf
    """Number of the role of the slot's episode, times `depths`, and its token's place in the datum by DEPTH."""
    micro_batches: Leaf
    """How many of the M are real."""
    row_tokens: Leaf
    """Tokens in the rows, without padding."""
    shared_tokens: Leaf
    """How many more there would be if every datum were in the rows whole."""
    padding_tokens: Leaf
    """Sampled tokens of the episodes without a row that count in the loss's divisor."""
    padding_sequences: Leaf
    """Number of those episodes."""
    idle_tokens: Leaf
    """Sampled tokens of those among them that are trained (`has_term`)."""
    idle_sequences: Leaf
    """Number of those that are trained."""
    sequences: int = struct.field(pytree_node=False)
    """Capacity for episodes, a power of four from 256 on."""
    roles: tuple[str, ...] = struct.field(pytree_node=False)
    """Of the update's episodes, in order."""
    depths: int = struct.field(pytree_node=False)
    """Pieces of DEPTH tokens that the longest datum may have."""
    packing: Packing | None = struct.field(pytree_node=False, default=None)
    """What every row holds at most, of attention that depends on it; None: anything."""
    stale_MN: Leaf = None
    """Steps that the weights lacked which sampled the token, at most STALEST; None if steps do not overlap."""
    teacher_MN: Leaf = None
    """The teacher's log-probs; None if the card has no teacher."""
    picked_MBTLk: Leaf = None
    """The experts that the policy's routers are to pick (`Datum.picked_TLk`); None if no datum has any."""

    @property
    def empty(self) -> bool:
        """Whether no episode has a row: the gradient of its step is 0."""
        return self.ids_MBT is None


def round_up(count: int) -> int:
    """The next number with at most three significant bits: 1…8, 10, 12, 14, 16, 20, … (at most a quarter more)."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


def _power_of_four(count: int) -> int:
    """The smallest power of four that is at least `count`."""
    power = 1
    while power < count:
        power *= 4
    return power


def _of_sampled(values_T: np.ndarray | None, datum: Datum, name: str, episode: Episode) -> np.ndarray | float:
    """The values of a datum's sampled tokens, 0 if there are none. Raises ValueError for values that do not fit."""
    if values_T is None:
        return 0.0
    of = f"{name} of a datum of {episode.role!r}, group {episode.group!r},"
    if np.shape(values_T) != datum.ids_T.shape:
        raise ValueError(f"{of} has the shape {np.shape(values_T)}, but the datum has {len(datum.ids_T)} tokens.")
    values = np.asarray(values_T, np.float32)[datum.sampled_T]
    if not np.isfinite(values).all():
        raise ValueError(f"{of} has a value that is not finite.")
    return values


def roles_of(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """The names of their roles, in order."""
    return tuple(sorted({episode.role for episode in episodes}))


def pieces_of(
    episodes: Sequence[Episode], limit: int, tempered: bool, card: LossCard | None, roles: Sequence[str] | None = None
) -> list[Piece]:
    """The datums with sampled tokens; limit: most tokens of one. roles: those that `Batch.cell_MN` counts, None: of the
    episodes. Errors are those of `pack`."""
    roles, depths = roles_of(episodes) if roles is None else roles, -(-limit // DEPTH)
    pieces, source = [], 0
    policy = card is None or card.objective == "policy"  # under "dpo" an advantage is a sign
    taught = policy and card is not None and card.teacher != "none"
    for number, episode in enumerate(episodes):
        length, opens = sampled_tokens(episode), True
        temperature = episode.temperature if tempered and episode.temperature > 0 else 1.0
        for datum in episode.datums:
            count = int(np.count_nonzero(datum.sampled_T))
            if not count:
                continue
            if len(datum.ids_T) > limit:
                raise ValueError(
                    f"an episode of {episode.role!r}, group {episode.group!r}, has {len(datum.ids_T)} tokens, more "
                    f"than the largest of learner.buckets, {limit}; add a larger bucket or lower rollout.max_length."
                )
            if datum.sampled_T[0]:
                raise ValueError(
                    f"the first token of a datum of {episode.role!r}, group {episode.group!r}, is marked as sampled, "
                    "but no token precedes it; start every datum with a prompt token."
                )
            if taught and datum.teacher_T is None:
                raise ValueError(
                    f"a datum of {episode.role!r}, group {episode.group!r}, has no teacher_T, but its loss has a "
                    "teacher; rate the episodes with tools.score."
                )
            advantage = 0.0 if episode.advantage is None else episode.advantage
            credit = _of_sampled(datum.credit_T if policy else None, datum, "credit_T", episode)
            teacher = _of_sampled(datum.teacher_T if taught else None, datum, "teacher_T", episode)
            loss = (advantage + credit, teacher, number, length, opens, source, temperature, episode.weight)
            pieces.append(Piece(datum, *loss, roles.index(episode.role) * depths, _stale(datum, episode)))
            source, opens = source + count, False
    return pieces


def _stale(datum: Datum, episode: Episode) -> np.ndarray | None:
    if datum.versions_T is None:
        return None
    return np.clip(episode.learned - datum.versions_T[datum.sampled_T], 0, STALEST)


def _deal(rows: Sequence[Node], bins: int, capacity: int) -> list[list[Node]]:
    """Distributes rows over bins of `capacity` rows: the row with the most trained tokens first, each to the bin with
    the fewest trained tokens, which keeps N small."""
    dealt: list[list[Node]] = [[] for _ in range(bins)]
    heap = [(0, number) for number in range(bins)]
    for row in sorted(rows, key=lambda r: -r.sampled):
        sampled, number = heapq.heappop(heap)
        dealt[number].append(row)
        if len(dealt[number]) < capacity:
            heapq.heappush(heap, (sampled + row.sampled, number))
    return dealt


def chunk_of(section: LearnerSection) -> int:
    """Tokens whose logits over the whole vocabulary are in memory at a time."""
    return CHUNK if section.logprob_chunk == "auto" else section.logprob_chunk


def slots_for(most: int, chunk: int) -> int:
    """N per shard: `most` trained positions rounded up, at least 16; above FEW_SLOTS to whole chunks."""
    return _power_of_four(max(most, 16)) if most <= FEW_SLOTS else round_up(-(-most // chunk)) * chunk


def _write_bin(arrays: dict[str, np.ndarray], place: int, rows: Sequence[Node]) -> None:
    """One shard's share of one micro-batch into the arrays [bins, rows, T] and [bins, N]."""
    slot = 0
    width = arrays["ids"].shape[-1]
    for number, row in enumerate(rows):
        for piece, place_T in _laid_out(row, {name: arrays[name][place, number] for name in ROWS}):
            datum = piece.datum
            if datum.picked_TLk is not None:  # of those that share tokens the last one's stay
                given_T = datum.picked_TLk[:, 0, 0] != datum.picked_TLk[:, 0, 1]
                arrays[PICKED][place, number, place_T[given_T]] = datum.picked_TLk[given_T]
            (sampled,) = np.nonzero(datum.sampled_T)
            window = slice(slot, slot + len(sampled))
            arrays["index"][place, window] = number * width + place_T[sampled - 1]
            arrays["targets"][place, window] = datum.ids_T[sampled]
            arrays["source"][place, window] = piece.source + np.arange(len(sampled))
            arrays["mask"][place, window] = True
            arrays["first"][place, slot] = piece.opens
            arrays["sequence"][place, window] = piece.sequence
            arrays["length"][place, window] = piece.length
            arrays["advantage"][place, window] = piece.advantage
            arrays["behaviour"][place, window] = datum.logprobs_T[sampled]
            if "teacher" in arrays:
                arrays["teacher"][place, window] = piece.teacher
            arrays["temperature"][place, window] = piece.temperature
            arrays["weight"][place, window] = piece.weight
            arrays["cell"][place, window] = piece.cell + sampled // DEPTH
            if piece.stale is not None:
                arrays["stale"][place, window] = piece.stale
            slot = window.stop


def _laid_out(row: Node, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[Piece, np.ndarray]]:
    """Writes a row into arrays [T]; its datums in that order, each with the places of its tokens."""
    start, above = 0, {row: np.zeros(0, np.int64)}
    for node in row.nodes():
        stop = start + len(node.ids)
        arrays["ids"][start:stop] = node.ids
        arrays["positions"][start:stop] = node.start + np.arange(len(node.ids))
        arrays["ends"][start:stop] = start + node.size
        place_T = np.concatenate([above.pop(node), np.arange(start, stop)])
        above |= dict.fromkeys(node.children, place_T)
        yield from ((piece, place_T) for piece in node.pieces)
        start = stop


def _empty(
    bins: int,
    rows: int,
    width: int,
    slots: int,
    taught: bool = False,
    picked: np.ndarray | None = None,
    stale: bool = False,
) -> dict[str, np.ndarray]:
    """picked: anything of the shape [..., L, k] and dtype of the picked experts; None: there are none."""
    arrays = {name: np.zeros((bins, rows, width), np.int32) for name in ROWS}
    integers = ("index", "targets", "sequence", "cell", *(("stale",) if stale else ()))
    arrays |= {name: np.zeros((bins, slots), np.int32) for name in integers}
    arrays |= {name: np.zeros((bins, slots), bool) for name in ("mask", "first")}
    floats = ("length", "advantage", "behaviour", "weight", *(("teacher",) if taught else ()))
    arrays |= {name: np.zeros((bins, slots), np.float32) for name in floats}
    arrays["temperature"] = np.ones((bins, slots), np.float32)  # 1 in empty slots: logits are divided by it there, too
    arrays["ends"][:] = np.arange(1, width + 1)
    if picked is not None:
        arrays[PICKED] = np.zeros((bins, rows, width, *picked.shape[-2:]), picked.dtype)
    return arrays | {"source": np.full((bins, slots), -1, np.int32)}


def rows_per_shard(section: LearnerSection, row_shards: int) -> int:
    """Most rows of a micro-batch on each shard; 0 if all rows are in one micro-batch."""
    assert section.micro_batch_rows != "auto"  # `fitting.fitted` gives a number
    return -(-section.micro_batch_rows // row_shards)


def micro_batches(section: LearnerSection, row_shards: int, rows: int, times: int = 1) -> tuple[int, int]:
    """(micro-batches, rows of each on each shard) for a number of rows: as few micro-batches as `rows_per_shard`
    allows, of that many rows, or of a quarter, a sixteenth … of them if that is enough. times: how many times as long
    as datums alone need the rows are; micro-batches have as many rows less, as their tokens are memory."""
    size = rows_per_shard(section, row_shards)
    if not size:
        return 1, round_up(-(-rows // row_shards))
    size = max(1, size // times)
    count = -(-rows // (size * row_shards))
    while size > 1 and count * -(-size // 4) * row_shards >= rows:
        size = -(-size // 4)
    return count, size


def _batch(
    arrays: Mapping[str, Leaf],
    micro_batches: Leaf,
    row_tokens: Leaf,
    shared_tokens: Leaf,
    padding: tuple[Leaf, Leaf],
    idle: tuple[Leaf, Leaf],
    sequences: int,
    roles: tuple[str, ...],
    depths: int,
    packing: Packing | None = None,
) -> Batch:
    return Batch(
        **{f"{name}_{_axes(name)}": array for name, array in arrays.items()},
        micro_batches=micro_batches,
        row_tokens=row_tokens,
        shared_tokens=shared_tokens,
        padding_tokens=padding[0],
        padding_sequences=padding[1],
        idle_tokens=idle[0],
        idle_sequences=idle[1],
        sequences=sequences,
        roles=roles,
        depths=depths,
        packing=packing,
    )


def _axes(name: str) -> str:
    return "MBTLk" if name == PICKED else "MBT" if name in ROWS else "MN"


def _counts(episodes: Sequence[Episode]) -> tuple[np.float32, np.float32]:
    """Sampled tokens, and the number of episodes that have any."""
    lengths = list(map(sampled_tokens, episodes))
    return np.float32(sum(lengths)), np.float32(np.count_nonzero(lengths))


def _over_context(arrays: dict[str, np.ndarray], context: int, chunk: int) -> dict[str, np.ndarray]:
    """The arrays [bins, rows, T] with tokens in the order of the devices, and those of slots as [bins, context · N]:
    first the slots of device 0, each list padded to the same N."""
    bins, rows, width = arrays["ids"].shape
    order, own = token_order(width, context), width // context
    place_T = np.argsort(order)  # of a token, in the order of the devices
    row_N, t_N = np.divmod(arrays["index"], width)
    device_N, local_N = np.divmod(place_T[t_N], own)
    device_N = np.where(arrays["mask"], device_N, -1)
    most = max(int((device_N == device).sum(axis=1).max()) for device in range(context))
    slots = context * slots_for(most, chunk)
    made = _empty(bins, rows, width, slots, "teacher" in arrays, arrays.get(PICKED), "stale" in arrays)
    of_tokens = made.keys() & {*ROWS, PICKED}
    for name in of_tokens:
        made[name] = arrays[name][:, :, order]
    arrays = arrays | {"index": (row_N * own + local_N).astype(np.int32)}
    slots = made["mask"].shape[1] // context
    for place in range(bins):
        for device in range(context):
            (mine,) = np.nonzero(device_N[place] == device)
            for name in made.keys() - of_tokens:
                made[name][place, device * slots : device * slots + len(mine)] = arrays[name][place, mine]
    return made


def abstract(
    section: LearnerSection,
    row_shards: int,
    width: int,
    sampled: int,
    micro_batches: int,
    context: int = 1,
    packing: Packing | None = None,
) -> Batch:
    """Shapes and dtypes of the batch that `pack` makes of full rows of `width` tokens, each one episode whose last
    `sampled` tokens are sampled, so many that there are `micro_batches`. Raises ValueError if all rows are in one
    micro-batch."""
    share = rows_per_shard(section, row_shards)
    if not share:
        raise UserError(
            "learner.micro_batch_rows is 0, so a micro-batch's size is known only when it runs; set a number of rows."
        )
    places = np.argsort(token_order(width, context))[width - 1 - sampled : width - 1]
    most = int(np.bincount(places // (width // context)).max(initial=0))  # on one device of a context group
    slots = context * slots_for(share * most, chunk_of(section))
    padded = _power_of_four(max(micro_batches, FEW_MICRO_BATCHES))
    arrays = {
        name: jax.ShapeDtypeStruct((padded, row_shards * one.shape[1], *one.shape[2:]), one.dtype)
        for name, one in _empty(1, share, width, slots).items()
    }
    real, count = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float32)
    sequences = _power_of_four(max(micro_batches * share * row_shards, FEW_SEQUENCES))
    depths = -(-max(section.buckets) // DEPTH)
    numbers = real, count, count, (count, count), (count, count)
    return _batch(arrays, *numbers, sequences, ("role",), depths, packing)


def pack(
    episodes: Sequence[Episode],
    section: LearnerSection,
    row_shards: int,
    tempered: bool = True,
    context: int = 1,
    card: LossCard | None = None,
    work: RowWork | None = None,
    roles: tuple[str, ...] | None = None,
    packed: bool = False,
) -> Batch:
    """The episodes as one batch of numpy arrays, deterministically.

    section: buckets, packing, micro_batch_rows (rounded up to a multiple of row_shards; 0: all rows at once) and
    logprob_chunk. row_shards: number of devices the rows are divided over. tempered: log-probs are at the episodes'
    sampling temperatures, else at 1 (as for temperature 0, greedy sampling). context: devices that the tokens of a row
    are divided over. work: decides whether what datums begin with is shared (`prefixes.cheapest`); None, or without
    packing: it is not. card: trained episodes without a term in its loss (`has_term`) have no row; None: all have one.
    Episodes without sampled tokens are left out; padding is counted but has no row. roles: those of the update, None:
    of these episodes. packed: programs depend on the batch's `packing`; otherwise it is None.

    Raises ValueError if nothing is left to train on, if a datum is longer than the largest bucket, if the first token
    of a datum is marked as sampled, or if credits or a teacher's log-probs do not fit their datum or are missing.
    """
    trained, limit = trainable(episodes), max(section.buckets)
    cells = roles_of(episodes) if roles is None else roles, -(-limit // DEPTH)
    if not trained:
        raise ValueError("there is nothing to train on: no trained episode has a sampled token.")
    chosen = [episode for episode in trained if card is None or has_term(episode, card)]
    idle = [episode for episode in trained if card is not None and not has_term(episode, card)]
    absent = _counts([*idle, *(episode for episode in episodes if episode.padding)]), _counts(idle)
    if not chosen:
        return _batch(
            *(dict.fromkeys(_empty(0, 0, 0, 0)), np.int32(0), np.float32(0), np.float32(0)),
            *(*absent, FEW_SEQUENCES, *cells),
        )
    pieces = pieces_of(chosen, limit, tempered, card, cells[0])
    longest = max(len(piece.datum.ids_T) for piece in pieces)
    buckets = sorted(bucket for bucket in section.buckets if bucket >= longest)
    if work is not None and section.packing:

        def places(rows: int, width: int) -> int:
            return math.prod(micro_batches(section, row_shards, rows, -(-width // buckets[0]))) * row_shards

        rows, width = cheapest(pieces, buckets, places, work)
    else:
        width = buckets[0]
        rows = rows_of(alone(pieces), width) if section.packing else sorted(alone(pieces), key=lambda row: -row.size)
    row_tokens = sum(row.size for row in rows)
    shared_tokens = sum(len(piece.datum.ids_T) for piece in pieces) - row_tokens
    real, share = micro_batches(section, row_shards, len(rows), -(-width // buckets[0]))
    dealt = _deal(rows, real * row_shards, share)
    slots = slots_for(max(sum(row.sampled for row in rows) for rows in dealt), chunk_of(section))
    padded = _power_of_four(max(real, FEW_MICRO_BATCHES)) if section.micro_batch_rows else 1
    taught = card is not None and card.teacher != "none"
    stale = any(piece.stale is not None for piece in pieces)
    arrays = _empty(padded * row_shards, share, width, slots, taught, _picked(pieces), stale)
    for place, dealt_rows in enumerate(dealt):
        _write_bin(arrays, place, dealt_rows)
    if context > 1:
        arrays = _over_context(arrays, context, chunk_of(section))

    def laid_out(name: str) -> np.ndarray:
        """[bins, rows or slots, …] as [M, row_shards · …], ordered by micro-batch, then by shard."""
        array = arrays[name]
        return array.reshape(padded, row_shards * array.shape[1], *array.shape[2:])

    laid = {name: laid_out(name) for name in arrays}
    numbers = np.int32(real), np.float32(row_tokens), np.float32(shared_tokens), *absent
    sequences, packing = _power_of_four(max(len(chosen), FEW_SEQUENCES)), packing_of(rows) if packed else None
    return _batch(laid, *numbers, sequences, *cells, packing)


def _picked(pieces: Sequence[Piece]) -> np.ndarray | None:
    """The picked experts of one of the datums; None if none has any. Raises ValueError if they are not of one model, or
    not of the datum's tokens."""
    found = [(piece.datum, own) for piece in pieces if (own := piece.datum.picked_TLk) is not None]
    for datum, own in found:
        first = found[0][1]
        if own.shape != (len(datum.ids_T), *first.shape[1:]) or own.dtype != first.dtype:
            raise ValueError(
                f"picked_TLk of a datum of {len(datum.ids_T)} tokens is {own.dtype}{list(own.shape)}, but that of "
                f"another one is {first.dtype}{list(first.shape)}; they belong to one model."
            )
    return found[0][1] if found else None


def unpack(batch: Batch, values_MN: Float[Array, "M N"] | Float[np.ndarray, "M N"]) -> Float[np.ndarray, " tokens"]:
    """Values of the trained positions in datum order: one per sampled token, episode by episode."""
    source_MN, values_MN = jax.device_get((batch.source_MN, values_MN))
    mask_MN = source_MN >= 0
    flat = np.empty(int(mask_MN.sum()), values_MN.dtype)
    flat[source_MN[mask_MN]] = values_MN[mask_MN]
    return flat
