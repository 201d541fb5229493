"""How many tokens drafts from what was written before save, if a dispatch verifies one for every row: of recorded runs.

    python -m benchmarks.drafts RUN … [--slots N] [--plan CARD ON …] [--record FILE]

RUN is a run with `log.tokens = true`. The drafter (`rollouts.drafter`) looks for the longest end of a row, of 2 to 8
tokens, that was written before: in the row itself and its prompt, in the finished rows of its group, and in those of
its step and role; the latest place counts. It drafts the k tokens that followed there, and a dispatch that verifies
them gives as many tokens as were right, and one more. As the tokens of a row follow from its key, what was sampled is
what would be sampled. Rows of a role begin in the order of the record, at most --slots at a time, and all rows under
way advance by one dispatch at a time; what tools return costs none.

--plan names cards with the hardware of `scope-jax plan`: there a dispatch of k + 1 positions a row has the FLOPs of so
many tokens and reads weights and cache once. The gain is tokens per dispatch over the seconds of such a dispatch,
relative to those of one token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.plan.architectures import model_of
from scope_jax.plan.assumptions import ASSUMED
from scope_jax.plan.estimates import decode_work, pace, seconds
from scope_jax.plan.hardware import hardware, without_compiler
from scope_jax.plan.planning import Planner
from scope_jax.rollouts.drafter import LONGEST, Text, continuation
from scope_jax.run.files import EPISODES, TOKENS, read_records
from scope_jax.run.records import pieces
from scope_jax.sharding.mesh import row_shards

DRAFTED = (2, 4, 8)  # tokens of a draft
SOURCES = ("row", "group", "step")  # each with those before it


class Counts(NamedTuple):
    """Of dispatches of rows."""

    sampled: int
    """Tokens."""
    dispatches: int
    drafts: int
    """Those of them that had a draft."""
    accepted: int
    """Tokens of drafts that were right."""

    def plus(self, more: Counts) -> Counts:
        return Counts(*map(sum, zip(self, more, strict=True)))


@dataclass(eq=False)
class Row:
    """A row that is being sampled again. Tokens are numbers of `rows_of`."""

    group: str
    prompt: list[int]
    tokens: list[int]
    """After the prompt."""
    sampled: list[bool]
    """Whether each of them was sampled."""
    text: Text = field(default_factory=Text)
    """The row so far."""
    done: int = 0
    """Tokens after the prompt that are there."""

    def advance(self, drafted: int, others: Sequence[Text]) -> Counts:
        """Goes on by one dispatch with a draft of so many tokens."""
        draft = continuation([self.text, *others], self.text.ids[-LONGEST:], drafted)
        sampled = 0
        for token in [*draft, None]:
            right = token == self.tokens[self.done]
            self._take()
            sampled += 1
            if not right or self.over or not self.sampled[self.done]:
                break
        self.observe()
        return Counts(sampled, 1, len(draft) > 0, sampled - 1)

    def observe(self) -> None:
        """Takes over what was not sampled."""
        while not self.over and not self.sampled[self.done]:
            self._take()

    @property
    def over(self) -> bool:
        return self.done == len(self.tokens)

    def begin(self) -> None:
        self.text.add(self.prompt)
        self.observe()

    def _take(self) -> None:
        self.text.add([self.tokens[self.done]])
        self.done += 1


def rows_of(run: Path) -> Iterator[tuple[int, str, list[Row]]]:
    """(step, role, its rows) of a run, in the order of the record."""
    cfg = load_card(run / "config.toml")
    tokenizer = Tokenizer.load(cfg.model.tokenizer or cfg.model.checkpoint)
    by_step = groupby(read_records(run / EPISODES), key=lambda line: line["step"])
    episodes = {step: list(lines) for step, lines in by_step}
    parts: dict[tuple[int, str], list[Row]] = {}
    numbers: dict[str, int] = {}

    def numbered(tokens: Iterable[str]) -> list[int]:
        return [numbers.setdefault(token, len(numbers)) for token in tokens]

    for line in read_records(run / TOKENS):
        episode = episodes[line["step"]][line["episode"]]
        prompt = pieces(map(tokenizer.token_bytes, tokenizer.encode(episode["text"].get("prompt", ""))))
        for row in line["rows"]:
            sampled = [logprob is not None for logprob in row["logprobs"]]
            parts.setdefault((line["step"], episode["role"]), []).append(
                Row(episode["group"], numbered(prompt or [""]), numbered(row["pieces"]), sampled)
            )
    for (step, role), rows in parts.items():
        yield step, role, rows


def played(rows: Sequence[Row], drafted: int, source: str, slots: int) -> Counts:
    """What the rows of a role in a step take."""
    waiting = [replace(row, text=Text(), done=0) for row in rows][::-1]
    groups: dict[str, Text] = {}
    step, live, counts = Text(), [], Counts(0, 0, 0, 0)
    while waiting or live:
        while waiting and len(live) < slots:
            row = waiting.pop()
            row.begin()
            live.append(row)
        for row in live:
            if not row.over:
                texts = [groups.setdefault(row.group, Text()), step][: SOURCES.index(source)]
                counts = counts.plus(row.advance(drafted, texts))
        for row in (row for row in live if row.over):
            group = groups.setdefault(row.group, Text())
            ids = row.tokens if group.ids else [*row.prompt, *row.tokens]
            group.add(ids)
            step.add(ids)
        live = [row for row in live if not row.over]
    return counts


def measured(run: Path, slots: int) -> dict[str, dict[str, float]]:
    """By role, tokens of a dispatch by source and length of the draft; how many tokens a row has on average; and for
    all sources, the share of dispatches that have a draft, and the tokens of one that has."""
    parts: dict[str, list[list[Row]]] = {}
    for _, role, rows in rows_of(run):
        parts.setdefault(role, []).append(rows)
    figures: dict[str, dict[str, float]] = {}
    for role, steps in parts.items():
        tokens = sum(sum(row.sampled) for rows in steps for row in rows)
        figures[role] = {"tokens of a row": tokens / sum(map(len, steps))}
        for source in SOURCES:
            for drafted in DRAFTED:
                counts = reduce(Counts.plus, [played(rows, drafted, source, slots) for rows in steps])
                figures[role][f"{source} {drafted}"] = counts.sampled / counts.dispatches
                if source == SOURCES[-1]:
                    figures[role][f"with a draft of {drafted}"] = counts.drafts / counts.dispatches
                    figures[role][f"tokens with a draft of {drafted}"] = 1 + counts.accepted / max(1, counts.drafts)
    return figures


def dispatch_seconds(card: Path, on: str) -> dict[str, dict[int, float]]:
    """With all slots under way, and with an eighth as at the end of a step: by the length of the draft, 0 among them,
    the seconds of a dispatch by the plan. Rows are half as long as they may become."""
    cfg: Config = load_card(card)
    there = without_compiler(hardware(on, compiled=False))
    model, _ = model_of(cfg.model.checkpoint, None)
    needs = Planner(model, there).needs(cfg)
    engine, length = needs.engine, cfg.rollout.max_length / 2
    slots = pace(engine, there, needs.held.cache, length).slots / row_shards(engine.mesh)

    def dispatch(live: float, drafted: int) -> float:
        one = decode_work(engine, there, length, live)
        work = decode_work(engine, there, length, live * (drafted + 1))
        return seconds(replace(work, cache=one.cache), there.chip, ASSUMED[there.platform])

    shares = {"all": 1.0, "an eighth": 1 / 8}
    return {name: {k: dispatch(slots * share, k) for k in (0, *DRAFTED)} for name, share in shares.items()}


def table(figures: dict[str, dict[str, float]], name: str) -> list[str]:
    """Markdown rows of a run."""
    columns = [[f"{source} {drafted}" for drafted in DRAFTED] for source in SOURCES]
    columns += [[f"{kind} {drafted}" for drafted in DRAFTED] for kind in ("with a draft of", "tokens with a draft of")]
    return [
        f"| {name} | {role} | {each['tokens of a row']:.0f} | "
        + " | ".join(" ".join(f"{each[key]:.2f}" for key in keys) for keys in columns)
        + " |"
        for role, each in figures.items()
    ]


def main() -> None:
    """Prints tables, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--plan", nargs="+", default=[], metavar="CARD ON")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    record: dict[str, Any] = {"slots": given.slots, "tokens of a dispatch": {}, "seconds of a dispatch": {}}
    print(
        "| run | role | sampled | of the row: k = 2, 4, 8 | and its group | and its step | with a draft | tokens |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for run in given.runs:
        record["tokens of a dispatch"][run.name] = figures = measured(run, given.slots)
        print("\n".join(table(figures, run.name)), flush=True)
    for card, on in zip(given.plan[::2], given.plan[1::2], strict=True):
        record["seconds of a dispatch"][f"{card} {on}"] = by_slots = dispatch_seconds(Path(card), on)
        for slots, times in by_slots.items():
            factors = ", ".join(f"{times[k] / times[0]:.2f} with k = {k}" for k in DRAFTED)
            print(f"{card} on {on}, {slots} of the slots: {1e3 * times[0]:.2f} ms, times {factors}")
    if given.record is not None:
        given.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
