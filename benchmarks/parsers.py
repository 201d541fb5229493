"""CPU time of every parser of policy, judge or document text, by the length of the text.

    python benchmarks/parsers.py                                one line of JSON: seconds by parser and length
    python benchmarks/parsers.py --table                        the same as a table
    python benchmarks/parsers.py --sizes 65536 --limit 1        fails if one text takes longer
    python benchmarks/parsers.py --only "SCORE rubric"          of some parsers

Each parser reads texts that repeat one piece (a tag, a brace, a quote, a space, a label), both bare and wrapped in the
markup that the parser looks for; the slowest text counts. limit: CPU seconds for one text. A parser is named in the log
before it starts.

Measured on two busy cores for 64, 256 and 1024 KiB: of 47 parsers the slowest (`contains`) takes .101, .407 and 1.802 s
of CPU, the median .006, .026 and .112.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.data.corpus import Corpus, Document, split_contents
from scope_jax.games import parse_config
from scope_jax.games.absolute_zero import rules as azero_rules
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection
from scope_jax.games.absolute_zero.state import identity
from scope_jax.games.dr_zero import rules as dr_zero_rules
from scope_jax.games.r_zero import rules as r_zero_rules
from scope_jax.games.scope import rules as scope_rules
from scope_jax.games.score import meta_harness
from scope_jax.games.score import rules as score_rules
from scope_jax.games.score.state import Rubric
from scope_jax.games.spell import rules as spell_rules
from scope_jax.games.spice import rules as spice_rules
from scope_jax.games.spice.options import options as spice_options
from scope_jax.games.ssp import rules as ssp_rules
from scope_jax.grading import measures, rewards, words
from scope_jax.play import documents, judging, pairwise, searching
from scope_jax.play.rubrics import score_of
from scope_jax.play.tool_calls import SEARCH
from scope_jax.play.tool_turns import read_turn
from scope_jax.retrieval.embed import HashedLexical
from scope_jax.retrieval.search import format_documents
from scope_jax.rollouts.types import Completion, Row, Turn
from scope_jax.text import dialects, parsing, templates
from scope_jax.text.objects import last_object

SIZES = (1 << 16, 1 << 18, 1 << 20)
TAGS = (
    "think",
    "search",
    "answer",
    "information",
    "score",
    "rubrics",
    "rubric",
    "tool_call",
    "function_calls",
    "python",
    "s",
)
PIECES = (
    *(form.format(tag) for tag in TAGS for form in ("<{}>", "</{}>", "<{}></{}>".replace("{}", "{0}"))),
    *(
        "<search a=",
        "< search ",
        '<rubric priority="critical">',
        "<",
        ">",
        "<>",
        "</",
        "<|",
        "<|x|>",
        "<!--",
        "<!-- -->",
    ),
    *(
        "{",
        "}",
        '{"a":',
        "[",
        "]",
        '["',
        '"',
        "'",
        "\\",
        '\\"',
        "\\u",
        "\\boxed{",
        "\\text{",
        "(",
        ")",
        "&",
        "&#1",
        "&lt;",
        "&#1;",
    ),
    *("<function=", "<function=python>", "<parameter=code>", "</parameter>", "</function>", "&amp;", "&lt;/search>"),
    *(
        " ",
        "\n",
        "\t",
        "-",
        "---\n",
        "\n---\n",
        "```\n",
        "```input",
        "<message>",
        "input(",
        "# Input:",
        "def f(",
        "*",
        ":",
        ".",
        "…",
        "(truncated)",
        "{answer}",
    ),
    *("```input", "<message>", "input(", "# Input:", "def f("),
    *("Answer:", "answer", "correct ", "Doc 1 (Title: ", "\nDoc 1 (Title: ", "a", "a ", "the ", "1", "é"),
)
INNER = (
    " ",
    "\n",
    "a",
    "[",
    "{",
    '"',
    "'",
    "\\",
    "<",
    "-",
    "&",
    "<!--",
    "<rubric>",
    "search(",
    'search(query="a")',
    "1",
)
# Text before and after the repeated piece, by what a parser looks for.
ANYWHERE = (("", "x"), ("<", ""), ("<search a=", ""), ("<think>", "</think>"), ("<think>", ""))
LABEL = (("Answer", ""), ("Answer:", ""), ("The answer is ", ""))
CODE = (
    ("<think></think><answer>", "</answer>"),
    ("<think></think><answer>```python\ndef f(", "\n```\n```input\n1\n```</answer>"),
    ("<think></think><answer>the input is", "</answer>"),
    ("<think></think><answer><input>", "</answer>"),
    ("<think></think>", ""),
)
FINAL = (
    ("<answer>", "</answer>"),
    ("<question>", "</question>"),
    ("<task>", "</task>"),
    ("<task><question>", "</task>"),
)
QUERY = (("<search>[", "]</search>"), ('<search>["', '"]</search>'))
JSON = (("<tool_call>", "</tool_call>"), ('<tool_call>{"name": "search", "arguments": {"query": "', '"}}</tool_call>'))
CALL = tuple(
    (f"<function_calls>{head}", f"{tail}</function_calls>")
    for head, tail in (("", ""), ("search(", ")"), ('search(query="', '")'), ('search(query="a"', "x"))
)
XML = (("<python>", "</python>"), ('<python>{"code": "', '"}</python>'), ("<python>", "<search>"))
LLAMA = (("<|python_tag|>", ""), ('{"name": "', '"}'), ('{"name": "python", "parameters": {"code": "', '"}}'))
CODER = tuple(
    (f"<tool_call>{head}", f"{tail}</tool_call>")
    for head, tail in (
        ("", ""),
        ("<function=", "</function>"),
        ("<function=python>", "</function>"),
        ("<function=python><parameter=code>", "</parameter></function>"),
        ("<function=python><parameter=limit>", "</parameter></function>"),
    )
)
RUBRIC = (
    *(("<rubrics>", "</rubrics>"), ("<rubrics><rubric ", ">a</rubric></rubrics>"), ("```json\n", "\n```"), ("[", "]")),
    *(('<rubrics><rubric priority="critical">', "</rubric></rubrics>"), ('[{"criterion": "', '"}]'), ("```", "")),
)
OBJECT = (('{"suitable_for_mcq": true, "reason": "', '"}'), ('{"a":', "}"), ('{"a": [', "]}"), ("x{", "}"))
TASK = (
    ('{"multiple_choice_correct": "B", "multiple_choice_question": "', '"}'),
    ('{"question": "Q", "answer_type": "float", "answer": "', '"}'),
)
BOX = ((r"\boxed{", "}"), (r"\boxed{", ""), (r"\text{", "}"))
QUESTION = tuple(
    (f'{{"question": "Who?", {head}', f"{tail}}}")
    for head, tail in (('"answer": ', ""), ('"answer": "', '"'), ('"answer": "B", "options": {"A": "', '"}'))
)
DIMENSIONS = (
    *(("<dimensions>", "</dimensions>"), ("<dimensions><dim ", "/></dimensions>"), ('<dimensions><dim name="', '"/>')),
    ('<dimensions><dim name="factuality"/>', "</dimensions>"),
)
EVALUATIONS = tuple(
    (f"<report_evaluations>{head}", f"{tail}</report_evaluations>")
    for head, tail in (
        ("", ""),
        ('<report id="1">', "</report>"),
        ('<report id="1"><verification>', "</verification></report>"),
        ('<report id="1"><scores>', "</scores></report>"),
        ('<report id="1"><scores><score ', "/></scores></report>"),
        ('<report id="1"><scores><score dim="factuality" value="1" reason="', '"/></scores></report>'),
        ('<report id="1"><citations><citation source="', '" verdict="unknown"/></citations></report>'),
        ("<report id='", "'></report>"),
        ('<report id="1"><scores><score dim="factuality" value="1"/>', "</scores></report>"),
        ('<report id="1"><scores><score dim=', ' value="1"/></scores></report>'),
        ('<report id="1"><scores><score dim="factuality" value="', "</score></scores></report>"),
        ('<report id="1"><citations><citation verdict=', "</citations></report>"),
    )
)
HARNESS = (('{"notes": "', '"}'), ('{"dimension_constraints": {"k": 4}, "notes": "', '"}'))
REPORT = (("## Conclusion\n", "\n## Sources\n"), ("## Conclusion", ""), ("a\n\n", "\nSources:"), ("**", "**"))
RESULTS = (
    *(("<information>", "</information>"), ("<information>Doc ", "</information>"), ("Doc ", "")),
    ("Doc 1 (Title: ", "x"),
)

Wraps = Sequence[tuple[str, str]]


def texts(size: int, wraps: Wraps) -> Iterator[str]:
    """Texts of slightly more than `size` characters."""
    for piece in PIECES:
        yield piece * (size // len(piece))
    for before, after in (*ANYWHERE, *wraps):
        for piece in INNER:
            yield before + piece * (size // len(piece)) + after


def _card(system: str, **tables: Any) -> Any:
    table = {"system": system, "model": {"checkpoint": "none"}, "retrieval": {"corpus": "none"}, "train": {"steps": 1}}
    return parse_config(table | tables, "the benchmark's card")


SSP = _card("ssp", data={"answers": "none"}, ssp={"grader": "exact-match"})
SCOPE = _card("scope", data={"documents": "none"})
SCORE = _card("score", data={"queries": "none"})
AZERO = AbsoluteZeroSection(inputs=2)
SPICE = _card("spice", retrieval=None, data={"documents": "none"})
DIALECTS = {name: dialects.load(name) for name in dialects.names()}
_ARGUMENTS = {"code": {"type": "string"}, "limit": {"type": ["integer", "array", "null"]}}
TOOLS = (SEARCH, {"name": "python", "parameters": {"type": "object", "properties": _ARGUMENTS}})
LEXICAL = HashedLexical.fit(Corpus.from_documents([Document("1", "the title", "a text")]), 256)
WEIGHTS = {"critical": 3.0, "important": 2.0, "bonus": 1.0}


def turn(kind: str, text: str) -> Any:
    ids = np.zeros(1, np.int32)
    finish = "stop" if kind == "sampled" else None
    return Turn(kind, ids, np.zeros(1, np.float32), text, finish, thought=parsing.THOUGHT)  # type: ignore[arg-type]


def episode(text: str) -> Completion:
    """Three turns with the same text: a policy's, an observation, a policy's."""
    turns = (turn("sampled", text), turn("observation", DIALECTS["xml"].observation([text])), turn("sampled", text))
    row = Row(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, bool), np.zeros(1, np.float32))
    return Completion((row,), turns, "stop")


def numbered(text: str) -> str:
    """A search result with pieces of the text as documents, all different."""
    pieces = (text[start : start + 24] for start in range(0, len(text), 24))
    return "\n".join(f"Doc 1 (Title: {number}\n{piece}" for number, piece in enumerate(pieces))


def broken_rule(text: str) -> str:
    """The rule of SSP that an episode breaks."""
    completion = episode(text)
    return ssp_rules.first_broken_rule(SSP, completion, ssp_rules.question_of(completion), ("Rome", "Roma"))


def answered(text: str, first_only: bool) -> Any:
    """The searches of a turn that are answered if its first one is run, or all of them."""
    agent = replace(searching.FIRST if first_only else searching.ALL, finals=("answer",))
    return read_turn(turn("sampled", text), (searching.reader(DIALECTS["xml"]),), DIALECTS["xml"], agent)


HARNESS_NOW = meta_harness.default(SCORE)


def harness_read(text: str) -> Any:
    """What a model's reply is as a harness; the error where it is none."""
    try:
        return meta_harness.parse(SCORE, text)
    except meta_harness.HarnessError as error:
        return error


FACTS = [{"weight": 1.0, "fact": ["The mouth is", "Rome"]}, {"weight": 2.0, "fact": ["a", "5"]}]
PARSERS: dict[str, tuple[Callable[[str], Any], Wraps]] = {
    "neutralise": (parsing.neutralise, ()),
    "without_thinking": (parsing.without_thinking, ()),
    "spans": (lambda text: parsing.last([text], "answer"), FINAL),
    "well_formed": (lambda text: parsing.well_formed(text, ("think", "search", "answer")), FINAL),
    "several": (parsing.several, QUERY),
    "last_object": (last_object, (('{"a": "', '"}'), ('{"a": ', "}"), ("```json", "```"))),
    "labelled_answer": (parsing.labelled_answer, LABEL),
    "calls, xml": (lambda text: DIALECTS["xml"].read(text, TOOLS), (*QUERY, *XML)),
    "calls, hermes": (lambda text: DIALECTS["hermes"].read(text, TOOLS), JSON),
    "calls, function": (lambda text: DIALECTS["function"].read(text, TOOLS), CALL),
    "calls, llama": (lambda text: DIALECTS["llama"].read(text, TOOLS), LLAMA),
    "calls, qwen-coder": (lambda text: DIALECTS["qwen-coder"].read(text, TOOLS), CODER),
    **{
        f"searches, {name}": (partial(searching.searches, dialect=dialect), (*QUERY, *JSON, *CALL))
        for name, dialect in DIALECTS.items()
    },
    "observation, results_of": (lambda text: DIALECTS["xml"].results_of(DIALECTS["xml"].observation([text])), RESULTS),
    "results_of": (lambda text: [d.results_of(text) for d in DIALECTS.values()], RESULTS),
    "message": (lambda text: [d.messages(text) for d in DIALECTS.values()], RESULTS),
    "answered, all searches": (lambda text: answered(text, False), (*FINAL, *QUERY)),
    "answered, first search": (lambda text: answered(text, True), (*FINAL, *QUERY)),
    "queries_run": (lambda text: searching.queries_run(episode(text), DIALECTS["xml"]), QUERY),
    "results_read": (lambda text: searching.results_read(episode(text), DIALECTS["xml"]), RESULTS),
    "keeps_format": (
        lambda text: searching.keeps_format(episode(text), DIALECTS["xml"], "answer", "think"),
        (*FINAL, *QUERY),
    ),
    "SSP rules": (broken_rule, FINAL),
    "SSP materials": (lambda text: ssp_rules.units([text, numbered(text)], "document"), RESULTS),
    "verdict": (judging.verdict, ()),
    "boxed": (parsing.boxed, BOX),
    "letter": (measures.letter, LABEL),
    "same_text": (lambda text: measures.same_text(text, ("Rome",)), BOX),
    "exact_match": (lambda text: rewards.exact_match(text, ("Rome",)), ()),
    "numeric": (lambda text: measures.numeric(text, ("5",)), ()),
    "contains": (lambda text: words.contains(text, "a b"), BOX),
    "score_of": (score_of, (("<score>", "</score>"),)),
    "rubric_of": (lambda text: scope_rules.rubric_of(text, WEIGHTS, 1, 1 << 30), RUBRIC),
    "SPELL question": (
        lambda text: [spell_rules.question_of(text, task, len, 1 << 30) for task in ("qa", "math", "choice")],
        QUESTION,
    ),
    **{
        f"SPELL conclusion, rule, {task}": (
            lambda text, task=task: [
                spell_rules.matches(task, text, spell_rules.conclusion_of(text), ["5"], *rule)
                for rule in (("answer", "plain"), ("answer", "careful"), ("response", "plain"))
            ],
            LABEL,
        )
        for task in ("qa", "math", "choice")
    },
    "SPELL verdict": (spell_rules.verdict_of, (("[[", "]]"),)),
    **{
        f"Absolute Zero, {task}": (
            lambda text, task=task: [
                *(azero_rules.solution(task, text, formal) for formal in (True, False)),
                azero_rules.draft(task, text, [identity(2)], AZERO),
            ],
            CODE,
        )
        for task in ("deduction", "abduction", "induction")
    },
    "R-Zero format": (
        lambda text: r_zero_rules.solver_reward(True, text, 0.1),
        (*BOX, ("<think>", "</think>\\boxed{1}")),
    ),
    "Dr. Zero format": (lambda text: dr_zero_rules.format_score([text], 1, 1, text, text, text), FINAL),
    "SCOPE turn": (
        lambda text: scope_rules.parse_turn(SCOPE, turn("sampled", text), "answer", False),
        (*FINAL, *QUERY),
    ),
    "SCOPE rules": (
        lambda text: (
            [scope_rules.has_thought(text, rule) for rule in ("paired", "opening", "starts")],
            scope_rules.task_of([scope_rules.ParsedTurn(text, text)], False),
            scope_rules.answer_of([scope_rules.ParsedTurn(text, text)]),
        ),
        FINAL,
    ),
    "SCORE rubric": (lambda text: score_rules.rubric_of(text, HARNESS_NOW), DIMENSIONS),
    "SCORE assessments": (
        lambda text: score_rules.assessments_of(text, 1, Rubric("factuality", {}), 10),
        EVALUATIONS,
    ),
    "SCORE conclusion": (lambda text: score_rules.conclusion_of(text, "section"), REPORT),
    "vote_of": (pairwise.vote_of, (("<verdict>", "</verdict>"),)),
    "facts_stated": (lambda text: measures.facts_stated(text, FACTS), REPORT),
    "SCORE consistency": (lambda text: score_rules.consistency([[text, text[:99]]], "query"), ()),
    "SCORE harness": (harness_read, HARNESS),
    "segments": (
        lambda text: documents.segments(text, 256, lambda part: len(part) // 4),
        (),
    ),
    "SPICE format": (lambda text: spice_rules.format_of(spice_options(SPICE), text), OBJECT),
    "SPICE task": (
        lambda text: [spice_rules.task_of(text, kind, 3) for kind in ("multiple-choice", "float")],
        (*OBJECT, *TASK),
    ),
    "document_of, cut": (
        lambda text: documents.cut(
            documents.document_of({"id": "a", "title": "", "text": text})[1], 256, lambda part: len(part) // 4
        ),
        (),
    ),
    "search results": (
        lambda text: format_documents([Document("", *split_contents(text)), Document("", text, text)]),
        RESULTS,
    ),
    "lexical query": (lambda text: LEXICAL.queries([text]), ()),
    "templates.fill": (lambda text: templates.fill(text, {"answer": "Rome"}), ()),
}


class TooSlow(Exception):
    """A parser took longer than its limit."""


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def seconds_of(parse: Callable[[str], Any], text: str, limit: float | None) -> float:
    """CPU seconds of one call. Raises TooSlow with the text's beginning and end."""
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit or 0)
    try:
        parse(text)
    except TooSlow:
        raise TooSlow(f"more than {limit} s of CPU time for {len(text)} characters {shown(text)}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return time.process_time() - start


def shown(text: str) -> str:
    return f"{text[:40]!r} … {text[-20:]!r}"


def slowest(parse: Callable[[str], Any], wraps: Wraps, size: int, limit: float | None) -> tuple[float, str]:
    """(CPU seconds, text) of the slowest text of that size: the three slowest texts of a first pass are timed again,
    best of three.
    """
    first = heapq.nlargest(3, ((seconds_of(parse, text, limit), text) for text in texts(size, wraps)))
    return max((min(once, *(seconds_of(parse, text, limit) for _ in range(2))), text) for once, text in first)


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS), metavar="PARSER")
    options.add_argument("--limit", type=float, help="CPU seconds for one text")
    options.add_argument("--table", action="store_true", help="print a Markdown table instead of JSON")
    given = options.parse_args(argv)
    signal.signal(signal.SIGPROF, _too_slow)
    for name in given.only:
        PARSERS[name][0]("two words")  # imports what it needs, which takes seconds on its own
    gc.freeze()  # exclude imported objects from garbage collection during the timing
    seconds: dict[str, dict[int, float]] = {}
    for name in given.only:
        parse, wraps = PARSERS[name]
        seconds[name] = {}
        for size in given.sizes:
            print(name, size, end=" ", file=sys.stderr, flush=True)
            try:
                seconds[name][size], text = slowest(parse, wraps, size, given.limit)
            except TooSlow as slow:
                raise SystemExit(f"{name}: {slow}") from None
            print(f"{seconds[name][size]:.3f} s for {shown(text)}", file=sys.stderr)
    if given.table:
        print(f"| parser | {' | '.join(f'{size >> 10} KiB' for size in given.sizes)} |")
        print(f"|---|{'---|' * len(given.sizes)}")
        for name, by_size in seconds.items():
            print(f"| {name} | {' | '.join(f'{value:.3f}' for value in by_size.values())} |")
    else:
        print(json.dumps({"benchmark": "parsers", "seconds": seconds}))


if __name__ == "__main__":
    main()
