"""A run of several processes: all execute the same code with the same results, and divide what is costly.

Every process plays the whole game, with the same episodes, memory and metrics. Only completions and judgements are
divided: each is computed by one process, on its own devices, and sent to the others. What fills the slots at first, and
judgements, are divided by the requests alone; further prompts go to whichever process has a free slot. No completion
depends on who computes it. Files are written by process 0. In a run of one process nothing is sent or divided.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import msgpack
import numpy as np

from scope_jax.errors import UserError, sentence
from scope_jax.grading.math_answers import Comparison
from scope_jax.learner.types import Reply
from scope_jax.multihost import distributed
from scope_jax.multihost.watch import PeerWatch
from scope_jax.play.driver import IN_GENERATOR
from scope_jax.play.rollouts import Interaction
from scope_jax.rollouts.types import Completion, Row, ToolResult, Turn
from scope_jax.run.stopping import Stopped, StopRequest, end
from scope_jax.text.messages import Messages

T = TypeVar("T")
Item = TypeVar("Item")
OTHERWISE = "what no game decides"  # for what has no name, see `together`
EXIT_CODE = 1  # of a process that ends because another one has
FAREWELL = 5.0  # seconds in which a process tells the others why it ends

_watch: PeerWatch | None = None  # over the other processes of the run


class PeerError(UserError):
    """The error of another process, in one sentence with its number."""


# ----------------------------------------------------------------------------------------------------------- together
def writes() -> bool:
    """True for the one process that writes files and shows progress."""
    return distributed.index() == 0


def together(work: Callable[[], T], what: str = "") -> list[T]:
    """The results of `work` on all processes, by process. If it fails on one, that one raises its own error and the
    others a PeerError, so that all end alike; so do all if they do not do the same.

    work: its result is made of what `encoded` takes. what: names it, where a game has a say in what is done next.
    """
    check_caller()
    if distributed.count() == 1:
        return [work()]
    failure = None
    try:
        message = encoded(("", what, work()))
    except Exception as error:  # noqa: BLE001 - raised below, once the others know
        failure, message = error, encoded((sentence(error) or type(error).__name__, what, None))
    outcomes = [decoded(part) for part in distributed.gather(message)]
    if failure is not None:
        raise failure
    for number, (problem, _, _) in enumerate(outcomes):
        if problem:
            raise PeerError(f"process {number} has failed: {problem}")
    for number, (_, other, _) in enumerate(outcomes):
        if other != what:
            raise PeerError(
                f"process {number} does something else ({other or OTHERWISE}) than process {distributed.index()} "
                f"({what or OTHERWISE}); let the game depend on its step, rows and memory alone, and not on the "
                "process, the time or random numbers without a seed."
            )
    return [result for _, _, result in outcomes]


def check_caller() -> None:
    """Raises RuntimeError in the generator of a rollout or item, which one process runs: it would wait for the others
    for ever."""
    if IN_GENERATOR.get():
        raise RuntimeError(
            "the generator of a rollout or an item has called the game's Tools, which all processes must call "
            "together; use its Context (`call`, `recorded`) or `step.gather`, or call them before or after `interact` "
            "or `map`"
        )


def by_one(work: Callable[[], T]) -> T:
    """The result of `work`, which only process 0 does, on all processes; raises as `together` does."""
    return together(lambda: work() if writes() else None)[0]  # type: ignore[return-value]


def agreed(value: T) -> T:
    """Process 0's value, on all processes: for what may differ between them, such as times."""
    return by_one(lambda: value)


def one_first(work: Callable[[], T]) -> T:
    """The result of `work`, which process 0 does before the others: for files that the first one writes and that the
    others then find, or write where the folder is not shared."""
    if distributed.count() == 1:
        return work()
    kept: list[T] = []
    for first in (True, False):
        together(lambda now=first: kept.append(work()) if writes() == now else None)
    return kept[0]


# ------------------------------------------------------------------------------------------------------------ dividing
def shares(costs: Sequence[float], processes: int) -> list[int]:
    """The process of each item: the costliest first, each to the process that has least so far, the first of several.

    A function of the costs alone, the same on every process.
    """
    loads = [0.0] * processes
    places = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        places[item] = min(range(processes), key=lambda process: loads[process])
        loads[places[item]] += costs[item]
    return places


def divided(
    work: Callable[[list[Item]], Sequence[T]], items: Sequence[Item], costs: Sequence[float], what: str = ""
) -> list[T]:
    """`work(items)`, of which each process does its share; all get all results, in the order of the items.

    work: its result for an item must not depend on the other items. what: see `together`, as which it raises.
    """
    check_caller()
    if distributed.count() == 1:
        return list(work(list(items)))
    places = shares(costs, distributed.count())
    own = [item for item, place in zip(items, places, strict=True) if place == distributed.index()]
    results = [iter(part) for part in together(lambda: list(work(own)) if own else [], what)]
    return [next(results[place]) for place in places]


class HandedOut:
    """Items of work that are handed out: what fills the slots at first by the items alone, the rest to whichever
    process asks, in an order that the items give.

    what: names the items, the same in all processes. costs: of the items. sizes: the slots that each needs. slots: of a
    process; None: all items are given out at first, by their costs. All processes must take all of `later`, then do
    something `together`, and then call `gathered`.
    """

    def __init__(self, what: str, costs: Sequence[float], sizes: Sequence[int], slots: int | None) -> None:
        self._what, self._count = what, len(costs)
        self._counter = f"items/{what}"
        self.first: list[int] = []  # with which this process begins
        self._rest: list[int] = []
        processes = distributed.count()
        if processes == 1:
            self.first = [*range(self._count)]
            return
        if slots is None:
            places = shares(costs, processes)
            self.first = [item for item, place in enumerate(places) if place == distributed.index()]
            return
        loads, room = [0.0] * processes, [slots] * processes
        for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
            # As `shares`, as far as there are slots; an item that needs more than a process has goes to an empty one.
            fitting = [place for place in range(processes) if room[place] >= min(sizes[item], slots)]
            if not fitting:
                self._rest.append(item)
                continue
            place = min(fitting, key=lambda place: loads[place])
            loads[place] += costs[item]
            room[place] -= sizes[item]
            if place == distributed.index():
                self.first.append(item)

    @property
    def later(self) -> Iterator[int]:
        """The items that this process gets after the first ones, each when it asks for it."""
        while self._rest and (number := distributed.number(self._counter)) <= len(self._rest):
            yield self._rest[number - 1]

    def gathered(self, work: Callable[[], list[tuple[int, T]]]) -> list[T]:
        """What all processes have done, by item. work: gives what this one has, with the item. Raises as `together`
        does, and ConnectionError if an item has come to none of them."""
        if self._rest and writes():
            distributed.forget(self._counter)  # nobody asks for more, and the next items may have the same name
        found = dict(pair for part in together(work, self._what) for pair in part)
        if len(found) < self._count:
            raise ConnectionError(
                "a prompt has come to no process, as somebody else counts at the coordinator's port; see that nobody "
                "else reaches it, and run the same command again."
            )
        return [found[item] for item in range(self._count)]


# ------------------------------------------------------------------------------------------------------ begin and end
@contextmanager
def joined() -> Iterator[None]:
    """In this block the process takes part in the run of several processes that the environment describes, if any.

    If it ends with an error or a signal, the others end too, each with one sentence, and likewise if it is killed.
    """
    place = distributed.detect()
    if place is None:
        yield
        return
    distributed.start(place)
    from jax.errors import JaxRuntimeError

    global _watch
    _watch = watch = PeerWatch(_end)
    stopped = None
    try:
        try:
            yield
        except Stopped as error:
            if error.step is None:
                raise
            stopped = error  # in all processes after the same step
        together(lambda: None, "the end")  # all have come to it
    except BaseException as error:
        if isinstance(error, JaxRuntimeError):  # so end collectives whose other processes are gone, and real errors
            watch.wait()
        watch.leave(f"was stopped by {error}" if isinstance(error, Stopped) else "has failed")
        raise
    watch.leave(None)
    distributed.stop()
    if stopped is not None:
        raise stopped


def signalled(request: StopRequest) -> int:
    """The number of a signal that one of the processes got, the same on all; 0 if there was none."""
    return next(filter(None, together(lambda: request.number)), 0)


def give_up(stopped: Stopped) -> None:
    """Ends this process, whose grace period is over; called in any thread. The others end, too."""
    _say(f"stopped by {stopped}, before the end of the step; the same command resumes from the last checkpoint.")
    if _watch is not None:  # in a thread, as the coordination service may not answer
        farewell = threading.Thread(target=_watch.leave, args=(f"was stopped by {stopped}",), daemon=True)
        farewell.start()
        farewell.join(FAREWELL)
    end(stopped.exit_code)


def prefix() -> str:
    """What this process's messages on standard error begin with."""
    return "scope-jax: " if distributed.count() == 1 else f"scope-jax: process {distributed.index()}: "


def _end(sentence: str) -> None:
    _say(f"{sentence}; this process ends, too, and the same command resumes from the last checkpoint.")
    end(EXIT_CODE)


def _say(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{prefix()}{sentence}\n")
    sys.stderr.flush()


def teller(tell: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """`tell` for sentences that only one process knows, such as about a judge that does not answer: those of other
    processes than 0 begin with the process."""
    return tell if tell is None or writes() else _say


def leave(error: BaseException) -> None:
    """Ends the process at once after an early end of a run of several processes, whose programs may still wait for
    others; returns in a run of one process. error: how the command ended."""
    if distributed.count() == 1:
        return
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


# ------------------------------------------------------------------------------------------------------------- messages
# The values that processes exchange, as msgpack: data alone, from which nothing but the types here is made. These are
# plain values, tuples, sets, paths, arrays as dtype, shape and bytes (those of JAX become numpy's), and the types in
# RECORDS by the values of their fields; to send anything else is an error. `multihost.distributed` signs what is sent.
RECORDS: tuple[type, ...] = (Completion, Interaction, Messages, Row, ToolResult, Turn, Reply, Comparison)
DTYPES = {
    dtype.name: dtype
    for kinds in ("bool", "int8 int16 int32 int64", "uint8 uint16 uint32 uint64", "float16 float32 float64")
    for dtype in map(np.dtype, kinds.split())
} | {"bfloat16": np.dtype(jnp.bfloat16)}
# Codes of msgpack's extension types.
TUPLE, SET, INTEGER, PATH, ARRAY, SCALAR, RECORD = range(7)


def encoded(value: Any) -> bytes:
    """The value as bytes. Raises TypeError for one that holds anything but what is named above."""
    message = msgpack.packb(value, default=_extended, strict_types=True, unicode_errors="surrogatepass")
    assert message is not None  # as its own types have it
    return message


def decoded(message: bytes) -> Any:
    """The value that `encoded` was given, with its types. Raises ValueError for bytes that it did not make."""
    try:
        return msgpack.unpackb(
            message, ext_hook=_of_extension, strict_map_key=False, unicode_errors="surrogatepass", raw=False
        )
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, msgpack.UnpackException) as error:
        raise UserError(f"a message of another process cannot be read ({error}); give all the same version.") from None


def _extended(value: Any) -> msgpack.ExtType:
    value = np.asarray(value) if isinstance(value, jax.Array) else value
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(TUPLE, encoded(list(value)))
    if kind in (set, frozenset):
        return msgpack.ExtType(SET, encoded([kind is frozenset, list(value)]))
    if kind is int:  # of more than 64 bits
        return msgpack.ExtType(INTEGER, f"{value:x}".encode())
    if isinstance(value, Path):
        return msgpack.ExtType(PATH, encoded(str(value)))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.name in DTYPES:
        name = value.dtype.name
        content = [name, list(value.shape), np.asarray(value, DTYPES[name]).tobytes()]  # in this host's byte order
        return msgpack.ExtType(ARRAY if isinstance(value, np.ndarray) else SCALAR, encoded(content))
    if kind in RECORDS:
        names = [field.name for field in fields(kind)] if hasattr(kind, "__dataclass_fields__") else kind._fields
        return msgpack.ExtType(RECORD, encoded([kind.__name__, *(getattr(value, name) for name in names)]))
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be sent to another process; send plain values.")


def _of_extension(code: int, content: bytes) -> Any:
    if code == INTEGER:
        return int(content, 16)
    return _BUILDERS[code](decoded(content))


def _array(content: list[Any]) -> np.ndarray:
    name, shape, data = content
    return np.frombuffer(bytearray(data), DTYPES[name]).reshape(shape)  # a copy, as it may be written


def _record(content: list[Any]) -> Any:
    name, *values = content
    return {kind.__name__: kind for kind in RECORDS}[name](*values)


_BUILDERS: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    SET: lambda content: (frozenset if content[0] else set)(content[1]),
    PATH: Path,
    ARRAY: _array,
    SCALAR: lambda content: _array(content)[()],
    RECORD: _record,
}
