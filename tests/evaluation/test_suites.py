"""Exam suites: their files, citations, papers' tables, prompts, and whole exams of a model behind an endpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.config import Config
from scope_jax.config import suites as cards
from scope_jax.config.base import CardError
from scope_jax.config.exams import EvalSet
from scope_jax.config.reference import page
from scope_jax.config.suites import (
    SUITES,
    Form,
    ProtocolSection,
    SuiteCard,
    load_figures,
    load_suite,
    suite_names,
    suites_of,
)
from scope_jax.evaluation import suites
from scope_jax.evaluation.suites import plain_card
from scope_jax.games import load_card
from scope_jax.grading.measures import choice
from scope_jax.report import papers
from tests.judge.endpoint import chat, endpoint

ROOT = Path(__file__).parents[2]
SHORT = ["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"]
OPEN = ["drb-race", "researchrubrics", "researchqa", "sqa-cs-v2", "researchplangen", "healthbench", "wildbench"]
LARGE = ["researchqa", "researchplangen", "healthbench", "wildbench"]  # more than 1,000 rows, or possibly
MATH = ["amc23", "minerva", "math500", "gsm8k", "olympiadbench", "aime24", "aime25"]
CHOICE = ["supergpqa", "gpqa-diamond", "mmlu-pro"]
LONG = ["docmath", "frames-long", "hotpotqa-long", "2wikimultihopqa-long", "musique-long", "longbench-v2"]
OF_PAPERS: dict[str, list[str]] = {
    "scope": [*SHORT, *OPEN, "arena-hard-cw"],
    "score": ["drb-race"],
    "ssp": SHORT,
    "spice": [*MATH, *CHOICE, "bbeh"],
    "spell": [*LONG, "aime24", "aime25", "amc23", "math500", "gsm8k", "mmlu-pro"],
}
# What the papers state, transcribed by hand: SSP 4.1; SCOPE 4.1; SPICE App. 7; SPELL C.2 and D.2.
STATED: dict[tuple[str, str], dict[str, Any]] = {
    **{("ssp", name): {"limit": 500, "samples": 1, "temperature": 0.0} for name in SHORT if name != "bamboogle"},
    ("ssp", "bamboogle"): {"limit": None, "samples": 1, "temperature": 0.0},
    **{("scope", name): {"limit": 1000, "max_tokens": 16384} for name in [*SHORT[:-1], *LARGE]},
    **{("spice", name): {"samples": 1, "temperature": 0.0} for name in [*MATH[:5], *CHOICE, "bbeh"]},
    **{("spice", name): {"samples": 32, "temperature": 0.6} for name in ("aime24", "aime25")},
    **{
        ("spell", name): {"samples": 8, "temperature": 0.7, "top_p": 0.95, "max_tokens": 4096}
        for name in OF_PAPERS["spell"]
    },
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_every_benchmark_of_the_papers_has_its_exam() -> None:
    for paper, names in OF_PAPERS.items():
        assert {suite.name for suite in suites_of(paper)} == set(names)
    others = set(suite_names()) - {name for names in OF_PAPERS.values() for name in names}
    assert others == {"simpleqa", "frames"}  # benchmarks of none of the papers
    assert tuple(OF_PAPERS) and set(OF_PAPERS) == set(cards.papers())


def test_answers_in_words_are_not_compared_as_formulas() -> None:
    """BBEH's answers are words and lists in an order: read as formulas, "silent" and "listen" are the same product."""
    measured = {name: load_suite(name, "spice").measures for name in (*MATH, *CHOICE, "bbeh")}
    assert measured.pop("bbeh") == ("same-text",)
    assert set(measured.values()) == {("accuracy",), ("choice",)}


@pytest.mark.parametrize("place", STATED, ids="-".join)
def test_sampling_is_as_the_paper_states(place: tuple[str, str]) -> None:
    paper, name = place
    suite = load_suite(name, paper)
    assert {key: getattr(suite, key) for key in STATED[place]} == STATED[place]


@pytest.mark.parametrize("name", suite_names())
def test_every_value_says_where_it_is_from(name: str) -> None:
    """Values other than the benchmark's form, file and games have a comment, and the header has both commands."""
    lines = (SUITES / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if "=" in line and not line.startswith("#")]
    assert [line for line in values if " # " not in line and not re.match("(form|path|games) ", line)] == []
    header = "\n".join(line for line in lines if line.startswith("#"))
    assert f"scope-jax data {name} data/exams/{name}.jsonl" in header and f"scope-jax eval RUN --exam {name}" in header
    assert load_suite(name).path == f"data/exams/{name}.jsonl"


def test_columns_of_the_papers_tables_are_their_exams() -> None:
    for paper in cards.papers():
        named = {exam for table in load_figures(paper).tables for column in table.columns for exam in column.exams}
        assert named == set(OF_PAPERS[paper])


MISPRINTED = {
    "OLMo-3-7B + SCOPE iter1": 35.8,
    "Qwen2.5-32B-Instruct + SSP": 58.5,
}  # means that differ from the figures'


@pytest.mark.parametrize("paper", cards.papers())
def test_the_papers_means_are_those_of_their_rows(paper: str) -> None:
    wrong = {}
    for table in load_figures(paper).tables:
        for name, row in table.rows.items():
            if table.mean is not None and abs(sum(row[:-1]) / len(row[:-1]) - row[-1]) > 0.0501:
                wrong[name] = row[-1]
    assert wrong == {name: mean for name, mean in MISPRINTED.items() if name in wrong}
    assert len(wrong) == {"scope": 1, "ssp": 1}.get(paper, 0)


def test_our_results_beside_the_papers() -> None:
    wanted = suites_of("spell")
    names = ["docmath", "frames-long", "2wikimultihopqa-long", "hotpotqa-long", "musique-long", "longbench-v2"]
    metrics = {f"eval/{name}/accuracy": 0.1 * place for place, name in enumerate(names)}
    metrics |= {"eval/docmath/accuracy": 0.4, "eval/docmath/accuracy_se": 0.02, "eval/longbench-v2/choice": 0.3}
    metrics |= {f"eval/{name}/accuracy_se": 0.03 for name in names[2:5]}
    table, _, short = papers.tables(load_figures("spell"), wanted, metrics)
    ours = table["ours"]
    assert [round(cell["mean"], 6) for cell in ours] == [40.0, 10.0, 30.0, 30.0, 27.5]
    assert ours[2]["se"] == pytest.approx(100 * (3 * 0.03**2) ** 0.5 / 3)
    assert ours[3]["se"] is None and ours[4]["se"] is None  # one exam has no standard error
    assert short["ours"] == [None] * 7  # nothing of it was measured, and so there is no mean
    lines = papers.lines(table, "this model")
    assert lines[0].startswith("Table 1, 16K") and lines[1].split() == ["DocMath", "Frames", "LB-MQA", "LB-V2", "Avg."]
    assert lines[2].split() == ["Qwen2.5-7B", "10.9", "27.9", "36.7", "31.2", "26.7"]
    assert lines[-1].startswith("this model") and "40.0 ± 2.0" in lines[-1]


def test_invalid_names_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"there is no exam 'nqq'; give one of 2wikimultihopqa, .*, wildbench"):
        load_suite("nqq")
    with pytest.raises(CardError, match="the paper spice does not use the exam nq; it is used by ssp, scope"):
        load_suite("nq", "spice")
    (tmp_path / "own.toml").write_text('path = "rows.jsonl"\nform = "short"\n')
    with pytest.raises(CardError, match="measures is empty"):
        load_suite("own", folder=tmp_path)
    (tmp_path / "own.toml").write_text('path = "rows.jsonl"\nform = "short"\nmeasures = ["f1"]\nprompt_tokens = 5\n')
    with pytest.raises(CardError, match="prompt_tokens cuts texts"):
        load_suite("own", folder=tmp_path)
    with pytest.raises(ValueError, match="rows keep their negative items"):
        EvalSet(name="x", path="y", measures=("points", "rubric"))
    with pytest.raises(ValueError, match="both count requests and what was not graded; make two sets of it"):
        EvalSet(name="x", path="y", measures=("rating", "rubric"))


def test_every_key_of_an_exam_is_documented_and_read() -> None:
    text = page(Config, {}, SuiteCard) + (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    own = set(SuiteCard.model_fields) - set(EvalSet.model_fields)
    assert {f"`{key}`" for key in own} <= set(re.findall(r"`\w+`", text))
    assert set(ProtocolSection.model_fields) <= set(SuiteCard.model_fields)
    assert all(f"`{form}`" in text for form in get_args(Form)) and all(f"`{name}`" in text for name in suite_names())


# ---------------------------------------------------------------------------------------------------- prompts, parsing
def test_a_reading_is_cut_in_its_middle_and_quoted_text_cannot_answer() -> None:
    suite = load_suite("musique-long").model_copy(update={"prompt_tokens": 160})
    row = {
        "question": "Who?",
        "answers": ["x"],
        "options": [],
        "task": None,
        "context": "word " * 400 + "</answer> end",
    }
    exam = suites.suite_exam(plain_card("m"), suite, None, "actor")
    text = exam.prompt(row, lambda text: len(text.split())).text
    assert len(text.split()) <= 160 and "…" in text and "[/answer] end" in text and "Question: Who?" in text


@pytest.mark.parametrize(
    ("form", "reply", "answer"),
    [
        ("short", "<answer>a</answer> no, <answer> b </answer>", "b"),
        ("short", "it is b", None),
        ("math", r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("choice", r"so \boxed{C}", "C"),
        ("choice", "hm\nThe answer is (D).\n", "The answer is (D)."),
        ("choice", "  \n", None),
        ("open", " a text \n", "a text"),
        ("document", "Answer: x\nbecause\nAnswer: **12 %**", "12 %"),
        ("document", "nothing", None),
    ],
)
def test_where_the_answer_is(form: Form, reply: str, answer: str | None) -> None:
    assert suites.READ[form](reply) == answer


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("A. foo\nB. bar\nC. baz\nD. qux", None),  # the last line alone would choose D
        ("Let us see.\n\n(A) foo\n\n(B) bar\n", None),
        ("A\nB\nC\nD", None),
        ("A: foo\nB: bar", None),
        ("- **A.** foo\n- **B.** bar", None),
        ("a) foo\nb) bar", None),
        ("Answer: A. foo\nB. bar\nC. baz", None),  # the first line alone would choose A
        ("Answer:\nA - foo\nB - bar", None),
        ("Answer: A\nB", None),
        (r"\boxed{A. foo B. bar}", None),
        ("A. foo: no\nB. bar: yes\nC. baz: no\n\nB. bar", "B"),  # no list goes from C to B
        ("A. foo\nB. bar\nThe answer is (B)", "B"),
        ("Answer: B\nA. foo is wrong.\nC. baz is wrong.", "B"),
        ("Answer: B. bar\nIt is the only even one.", "B"),
        ("Answer: B\nC: too large", "B"),  # a reason stands behind the letter, not another option
        ("foo, then\nB. bar", "B"),
    ],
)
def test_options_on_lines_below_one_another_choose_none(reply: str, chosen: str | None) -> None:
    said = suites.READ["choice"](reply) or ""
    assert [option for option in "ABCD" if choice(said, [option])] == ([chosen] if chosen else [])


def test_options_have_letters() -> None:
    row = {"question": "Which?\n", "options": ["one", "two"]}
    assert suites.question(row) == "Which?\n\n(A) one\n(B) two"
    assert suites.question({"question": "Which?", "options": []}) == "Which?"


# ---------------------------------------------------------------------------------------------------------- whole exams
ROWS: dict[str, list[dict[str, Any]]] = {
    "nq": [{"question": "capital of France?", "answers": ["Paris"]}, {"question": "of Norway?", "answers": ["Oslo"]}],
    "gsm8k": [{"question": "1 + 1?", "answers": ["2"]}],
    "mmlu-pro": [{"question": "Which is even?", "options": ["1", "2", "3"], "answers": ["B"]}],
    "healthbench": [
        {
            "messages": [{"role": "user", "content": "help"}],
            "rubric": [{"criterion": "asks back", "points": 5}, {"criterion": "is rude", "points": -3}],
        }
    ],
    "wildbench": [{"question": "a poem", "rubric": [{"criterion": "rhymes"}]}],
    "arena-hard-cw": [{"question": "a story", "answers": ["once"]}],
    "drb-race": [
        {
            "question": "report",
            "rubric": [
                {"criterion": "one", "dimension": "insight", "weight": 1.0},
                {"criterion": "two", "dimension": "readability", "weight": 3.0},
            ],
        }
    ],
    "longbench-v2": [{"question": "Who?", "context": "A text.", "choice_A": "a", "choice_B": "b", "choice_C": "c",
                      "choice_D": "d", "answer": "A"}],
}  # fmt: skip


def model(number: int, body: dict[str, Any]) -> tuple[int, Any]:
    """A model that knows Paris, and a judge of its own answers."""
    text = body["messages"][-1]["content"]
    if "to be compared" in text:
        return chat(f"<verdict>{'A' if text.index('my text') < text.index('once') else 'B'}</verdict>")
    if "Give an answer a mark" in text:
        return chat("<score>8</score>")
    if "Here is one of them" in text:
        return chat("<think>x</think><score>0</score>" if "\ntwo\n" in text else "<score>1</score>")
    found = {"capital of France": "<answer>paris</answer>", "of Norway": "<answer>Bergen</answer>"}
    found |= {"1 + 1": r"\boxed{2.0}", "Which is even": "(B)", "Who?": "Answer: B"}
    return chat(next((reply for part, reply in found.items() if part in text), "my text"))


def test_suites_of_an_endpoint(tmp_path: Path) -> None:
    """Every form and kind of judging, from the command line; what is asked, and what is measured."""
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with endpoint(model) as (url, seen):
        judge = ("--set", f'evaluate.judge={{url="{url}", model="judge"}}')
        grader = f'{{temperature=1.0, max_tokens=9, endpoint={{url="{url}", model="grader"}}}}'
        exams = [word for name in ROWS for word in ("--exam", name)]
        result = run(
            *("eval", url, "--model", "m", *exams, "--data", tmp_path, *judge, "--set", f"evaluate.grader={grader}"),
            *("--records", tmp_path / "records.jsonl", "--json"),
        )
    assert result.exit_code == 0, (result.output, result.exception)
    metrics = json.loads(result.stdout.splitlines()[-1])["metrics"]
    expected = {
        "nq/exact-match": 0.5, "nq/exact-match_se": 0.5, "nq/f1": 0.5, "nq/questions": 2.0, "gsm8k/accuracy": 1.0,
        "mmlu-pro/choice": 1.0, "healthbench/points": 0.4, "wildbench/rating": 0.6, "arena-hard-cw/pairwise": 1.0,
        "drb-race/score": 0.25, "drb-race/score_insight": 1.0, "drb-race/score_readability": 0.0,
        "longbench-v2/choice": 0.0,
    }  # fmt: skip
    assert {name: metrics[f"eval/{name}"] for name in expected} == pytest.approx(expected)
    asked = [body for body in seen if body["model"] == "m"]
    assert len(asked) == 9 and len({body["seed"] for body in asked}) == 9
    assert {body["temperature"] for body in asked} == {0.0} and "(B) 2" in json.dumps(asked)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records][:2] == ["paris", "Bergen"]


def test_a_base_model_that_goes_on_with_another_conversation_is_graded_on_its_reply(tmp_path: Path) -> None:
    """SPICE evaluates base models, whose reply no end token may end; an endpoint may give what follows all the same."""
    for name in ("gsm8k", "mmlu-pro"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS[name])))
    replies = {
        "1 + 1": r"It is \boxed{2}." + "\n\nUser: 3 + 3?\n\nAssistant: " + r"\boxed{6}",
        "Which is even": "It is\n(B)\nUser:",
    }

    def base(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        return chat(next(reply for part, reply in replies.items() if part in body["messages"][-1]["content"]))

    exams = ("--exam", "gsm8k", "--exam", "mmlu-pro", "--data", tmp_path)
    with endpoint(base) as (url, seen):
        result = run("eval", url, "--model", "m", "--paper", "spice", *exams, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    metrics = json.loads(result.stdout.splitlines()[-1])["metrics"]
    assert metrics["eval/gsm8k/accuracy"] == metrics["eval/mmlu-pro/choice"] == 1.0
    assert all(body["stop"] == ["<|im_end|>", "\nUser:", "\nAssistant:"] for body in seen)
    for suite in suites_of("spice"):  # of a model here, the engine ends the reply there
        exam = suites.suite_exam(plain_card("m"), suite, None, "actor")
        assert exam.role.agent.stop == ("<|im_end|>", "\nUser:", "\nAssistant:")


def test_a_papers_table_from_the_command_line(tmp_path: Path) -> None:
    """AIME has 32 samples in SPICE; the other columns were not asked for."""
    (tmp_path / "aime24.jsonl").write_text(json.dumps({"question": "1 + 1?", "answers": ["002"]}))
    with endpoint(model) as (url, seen):
        result = run("eval", url, "--model", "m", "--paper", "spice", "--exam", "aime24", "--data", tmp_path, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    (table,) = json.loads(result.stdout.splitlines()[-1])["tables"]
    assert len(seen) == 32 and {body["temperature"] for body in seen} == {0.6}
    assert dict(zip(table["columns"], table["ours"], strict=True))["AIME24"]["mean"] == 100.0
    assert "Qwen3-4B-Base + SPICE" in result.stderr and "this model" in result.stderr


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), {"max_tokens": 4096, "temperature": 0.7, "top_p": 0.95}),
        (("--max-tokens", 20480), {"max_tokens": 20480}),
        (("--set", "evaluate.max_tokens=20480"), {"max_tokens": 20480}),
        (("--set", "evaluate.max_tokens=9"), {"max_tokens": 9}),  # what the command says counts
        (("--max-tokens", 9, "--set", "evaluate.max_tokens=20480"), {"max_tokens": 9}),
        (("--set", "evaluate.temperature=0.5", "--top-p", 0.9), {"temperature": 0.5, "top_p": 0.9}),
        (("--temperature", 0.6), {"temperature": 0.6}),
    ],
)
def test_the_command_sets_the_limits_of_an_exam(
    options: tuple[str, ...], asked: dict[str, Any], tmp_path: Path
) -> None:
    """Thinking models need 20,480 tokens (SPELL C.2); the exam's file says 4,096."""
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(ROWS["gsm8k"][0]))
    with endpoint(model) as (url, seen):
        words = ("--paper", "spell", "--exam", "gsm8k", "--samples", 2, "--data", tmp_path)
        result = run("eval", url, "--model", "m", *words, *options)
    assert result.exit_code == 0, (result.output, result.exception)
    sampled = [body for body in seen if "1 + 1" in json.dumps(body)]
    assert len(sampled) == 2 and [{key: body[key] for key in asked} for body in sampled] == [asked] * 2


def test_a_document_is_cut_to_the_prompt_tokens_of_the_command_and_a_missing_judge_is_told(tmp_path: Path) -> None:
    row = ROWS["longbench-v2"][0] | {"context": "word " * 60_000, "answers": ["x"], "question": "Who?"}
    (tmp_path / "musique-long.jsonl").write_text(json.dumps(row))
    lengths = []
    for options in ((), ("--prompt-tokens", 40_000)):
        with endpoint(model) as (url, seen):
            words = ("--paper", "spell", "--exam", "musique-long", "--samples", 1, "--data", tmp_path)
            result = run("eval", url, "--model", "m", *words, *options)
        assert result.exit_code == 0, (result.output, result.exception)
        assert "musique-long: without [evaluate.judge], accuracy is the rule's alone" in " ".join(result.stderr.split())
        lengths.append(max(len(json.dumps(body)) for body in seen) / 4)  # about four bytes a token
    assert 15_000 < lengths[0] < 17_000 and 38_000 < lengths[1] < 41_000


def test_the_card_of_a_thinking_model_raises_the_limits_of_the_papers_exams() -> None:
    for name, tokens in (("qwen3-4b-thinking", 20_480), ("r1-distill-qwen-14b", 20_480), ("qwen2.5-7b", 4096)):
        cfg = load_card(ROOT / f"configs/spell/{name}.toml")
        raised = [suites._with_limits(cfg, suite, (), frozenset()) for suite in suites_of("spell")]
        assert {suite.max_tokens for suite in raised} == {tokens}
        assert {suite.temperature for suite in raised} == {0.7}
    cfg = load_card(ROOT / "configs/spell/atlas.toml")  # 56 tokens
    assert suites._with_limits(cfg, load_suite("docmath", "spell"), (), frozenset()).max_tokens == 4096


def test_the_card_raises_the_length_of_documents(tmp_path: Path) -> None:
    """`--set spell.exam_prompt_tokens=100000`, the paper's other column."""
    row = {"question": "Who?", "context": "w " * 500, "answers": ["x"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    changes = {"path": str(tmp_path / "rows.jsonl"), "prompt_tokens": 200}
    suite = load_suite("musique-long").model_copy(update=changes)
    more = ("spell.exam_prompt_tokens=400",)
    found = []
    for override, given in (((), ()), (more, ()), (more, ("prompt_tokens",))):
        cfg = load_card(ROOT / "configs/spell/atlas.toml", ["spell.exam_prompt_tokens=100", *override])
        (one,) = suites.suite_sets(cfg, [suite], True, override, frozenset(given), lambda sentence: None)
        found.append(len(one.exam.prompt(one.rows[0], lambda text: len(text.split())).text.split()))
    assert all(limit - 10 < length <= limit for length, limit in zip(found, (200, 400, 200), strict=True))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("http://127.0.0.1:1/v1", "--exam", "nq"), "give the name of its model with --model"),
        (("http://127.0.0.1:1/v1", "--model", "m"), "name benchmarks with --exam or --paper"),
        (("tests", "--model", "m"), "--model and --api-key-env are for endpoints"),
        (("tests", "--limit", "3"), "--limit is for benchmarks"),
        (("tests", "--max-tokens", "3"), "--max-tokens is for benchmarks"),
        (("tests", "--exam", "nq", "--prompt-tokens", "3"), "--prompt-tokens cuts documents, which none"),
        (
            ("http://127.0.0.1:1/v1", "--model", "m", "--exam", "simpleqa", "--data", "{rows}", "--samples", "3"),
            "asks for 3 samples at temperature 0",
        ),
        (("tests", "--paper", "dpo"), "--paper is 'dpo'; give one of scope, score, spell, spice, ssp"),
        (("tests", "--exam", "nq", "--exam", "nq"), "--exam nq is there twice"),
        (("tests", "--exam", "nq", "--measure", "bleu"), "the exam nq: `measures.0` must be"),
        (("http://127.0.0.1:1/v1", "--model", "m", "--exam", "nq", "--data", "nowhere"), "nowhere/nq.jsonl does not"),
        (("http://127.0.0.1:1/v1", "--model", "m", "--exam", "simpleqa", "--data", "{rows}"), "add [evaluate.judge]"),
        (("http://127.0.0.1:1/v1", "--model", "m", "--exam", "drb-race", "--data", "{rows}"), "evaluate.grader"),
    ],
)
def test_user_errors_are_sentences(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "simpleqa.jsonl").write_text(json.dumps({"question": "q", "answers": ["a"]}))
    (tmp_path / "drb-race.jsonl").write_text(json.dumps(ROWS["drb-race"][0]))
    result = run("eval", *(word.replace("{rows}", str(tmp_path)) for word in words))
    assert result.exit_code == 2 and sentence in " ".join(result.stderr.split()), (result.output, result.exception)


def test_a_games_own_prompt_is_used_with_its_card() -> None:
    """SSP answers short questions with searches; with SPICE's reasoner, options are listed."""
    from scope_jax.games import game_of

    cfg = load_card(ROOT / "configs/ssp/atlas.toml")
    own = game_of(cfg).exam_of(cfg)
    exam = suites.suite_exam(cfg, load_suite("nq"), own, own.role.agent.policy)
    row = {"question": "capital of France?"}
    assert exam.prompt(row, len) == own.prompt(row, len) and exam.role == own.role and exam.role.may_search
    cfg = load_card(ROOT / "configs/spice/atlas.toml")
    own = game_of(cfg).exam_of(cfg)
    exam = suites.suite_exam(cfg, load_suite("mmlu-pro"), own, own.role.agent.policy)
    assert exam.kind == "choices" and "(B) two" in exam.prompt({"question": "q", "options": ["one", "two"]}, len).text


@pytest.mark.parametrize("limit", [200, 400])
def test_the_limit_of_an_exam_holds_for_a_games_own_prompt_too(limit: int) -> None:
    """SPELL at 16K and at 100K: `prompt_tokens` of the exam, not `spell.exam_prompt_tokens` of the card."""
    from scope_jax.games import game_of

    cfg = load_card(ROOT / "configs/spell/atlas.toml", ["spell.exam_prompt_tokens=300"])
    own = game_of(cfg).exam_of(cfg)
    suite = load_suite("musique-long").model_copy(update={"prompt_tokens": limit})
    row = {"question": "Who?", "options": [], "task": None, "context": "word " * 1000}

    def tokens(text: str) -> int:
        return len(text.split())

    assert 290 <= tokens(own.prompt(row, tokens).text) <= 300
    asked = suites.suite_exam(cfg, suite, own, own.role.agent.policy).prompt(row, tokens).text
    assert limit - 10 <= tokens(asked) <= limit


@pytest.mark.parametrize("paper", cards.papers())
def test_an_unknown_key_in_a_papers_tables_is_refused(paper: str, tmp_path: Path) -> None:
    text = (SUITES / "papers" / f"{paper}.toml").read_text(encoding="utf-8")
    assert load_figures(paper).tables
    (tmp_path / f"{paper}.toml").write_text(text.replace("about = ", "abuot = ", 1), encoding="utf-8")
    with pytest.raises(CardError, match="abuot"):
        load_figures(paper, tmp_path)
