"""What a run writes about a step: the records of episodes, their judgements and tokens, and questions of exams.

    episodes.jsonl       {"step": 3, "role": "solver", "group": "g0", "reward": 1.0, "text": {…}, …}
    judgements.jsonl.gz  {"step": 3, "episode": 17, "role": "solver", "group": "g0", "job": "grader", "about": "Names
                         the year.", "replies": [{"text": "…", "refused": ""}, …], "read": true}
    tokens.jsonl.gz      {"step": 3, "episode": 17, "rows": [{"pieces": ["<ans", "wer>", …], "logprobs": [-0.02, null,
                         …], "entropies": [0.11, null, …]}, …]}
    exams.jsonl.gz       {"step": 20, "set": "held_out", "question": 3, "of": "5f1d08c2", "measures": {"accuracy": 0.5}}

Where steps overlap, an episode has "versions": of each of its rows pairs of how many steps the weights had learned and
how many of the row's sampled tokens are theirs. `episode` is the index, from 0, of an episode among the step's lines in
episodes.jsonl. Judgements: one line per request; malformed replies are included, and a reply to several identical
requests is repeated for each; a reply that was cut also has "cut", the reason. Tokens: one line per episode with
sampled tokens; a row begins with its first sampled token, as the prompt before it is in episodes.jsonl; logprobs are
natural logarithms of the probability with which the engine sampled the token, entropies (with `log.entropies`) in nats
of the distribution that this probability is of, both with two decimals and null for a token that was read. Exams: one
line per question; a measure is averaged over the question's answers; `question` is the index, from 0, in the set and
`of` a checksum of its text, so that two runs can be compared question by question.
"""

from __future__ import annotations

import codecs
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Datum, Episode, Judgement
from scope_jax.run.lines import Record

Questions = dict[tuple[int, str], dict[str, float]]  # measures by (index, checksum)
TokenBytes = Callable[[int], bytes]  # the bytes that a token adds to a text


def episode_record(step: int, episode: Episode) -> Record:
    """The record of an episode."""
    return {
        "step": step,
        "role": episode.role,
        "policy": episode.policy,
        "group": episode.group,
        "reward": episode.reward,
        "parts": episode.parts,
        "advantage": episode.advantage,
        **({"credit": credit} if (credit := episode.credit) else {}),
        "trained": episode.trained,
        "tokens": sum(len(datum.ids_T) for datum in episode.datums),
        "sampled": sum(int(datum.sampled_T.sum()) for datum in episode.datums),
        **({"versions": versions} if (versions := version_runs(episode)) else {}),
        "text": episode.text,
    }


def version_runs(episode: Episode) -> list[list[list[int]]]:
    """Of each row with sampled tokens, where steps overlap: how many steps had been learned by the weights, and how
    many sampled tokens in a row are theirs, as pairs; [] where steps do not overlap."""
    runs = []
    for datum in episode.datums:
        if datum.versions_T is None or not datum.sampled_T.any():
            continue
        versions = datum.versions_T[datum.sampled_T].tolist()
        runs.append([[version, len(list(tokens))] for version, tokens in itertools.groupby(versions)])
    return runs


# ----------------------------------------------------------------------------------------------------------- judgements
def judgement_records(step: int, episodes: Sequence[Episode]) -> Iterator[Record]:
    """The records of the judgements of a step's episodes."""
    for place, episode in enumerate(episodes):
        for judgement in episode.judgements:
            yield {"step": step, "episode": place, "role": episode.role, "group": episode.group} | _plain(judgement)


def _plain(judgement: Judgement) -> Record:
    plain = asdict(judgement)
    for reply in plain["replies"]:
        if not reply["cut"]:
            del reply["cut"]
    return plain


# --------------------------------------------------------------------------------------------------------------- tokens
def token_records(step: int, episodes: Sequence[Episode], token_bytes: TokenBytes) -> Iterator[Record]:
    """The records of the tokens of a step's episodes."""
    for place, episode in enumerate(episodes):
        if rows := [_row(datum, token_bytes) for datum in episode.datums if datum.sampled_T.any()]:
            yield {"step": step, "episode": place, "rows": rows}


def _row(datum: Datum, token_bytes: TokenBytes) -> Record:
    first = int(datum.sampled_T.argmax())
    sampled = datum.sampled_T[first:].tolist()

    def rounded(values_T: np.ndarray) -> list[float | None]:
        return [round(value, 2) if own else None for value, own in zip(values_T[first:].tolist(), sampled, strict=True)]

    row = {
        "pieces": pieces(map(token_bytes, datum.ids_T[first:].tolist())),
        "logprobs": rounded(datum.logprobs_T),
    }
    return row if datum.entropies_T is None else row | {"entropies": rounded(datum.entropies_T)}


def pieces(tokens: Iterable[bytes]) -> list[str]:
    """The text of each token. A character of several tokens belongs to its last one; invalid bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token) for token in tokens]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts


# ---------------------------------------------------------------------------------------------------------------- exams
def question_records(step: int, exams: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """The records of the questions of an evaluation. exams: the records of all answers by name of the set."""
    for name, answers in exams.items():
        for (place, about), measures in by_question(answers).items():
            yield {"step": step, "set": name, "question": place, "of": about, "measures": measures}


def by_question(answers: Iterable[Mapping[str, Any]]) -> Questions:
    """The measures of every question, each averaged over the answers that have it.

    answers: "question", "sample" (0 begins a question) and "measures" of every answer, in order.
    """
    questions: list[list[Mapping[str, Any]]] = []
    for answer in answers:
        if not answer.get("sample"):
            questions.append([])
        questions[-1].append(answer)
    return {(place, _about(samples[0])): _means(samples) for place, samples in enumerate(questions)}


def _about(answer: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(str(answer.get('question', '')).encode()):08x}"


def _means(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for answer in answers for name in answer["measures"])
    return {name: mean([a["measures"][name] for a in answers if name in a["measures"]]) for name in names}


def last_questions(records: Iterable[Record]) -> dict[str, Questions]:
    """The measures of every question in the last evaluation, by name of the set. records: of exams.jsonl.gz."""
    step, by_set = -1, {}
    for record in records:
        if record["step"] > step:
            step, by_set = record["step"], {}
        by_set.setdefault(record["set"], {})[record["question"], record["of"]] = record["measures"]
    return by_set
