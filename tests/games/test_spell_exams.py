"""Exams of SPELL: the middle of long texts is cut, answers are parsed as in training (App. C.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scope_jax.config import Config, EvalSet, JudgeSection
from scope_jax.config.exams import EvalSection
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.games import load_card, spell
from scope_jax.play import exams
from scope_jax.play.documents import GAP
from tests.games.harness import ScriptedTools, TurnContext
from tests.games.spell_world import card

ROW: dict[str, Any] = {"question": "Who built it?", "answers": ["Ada Berg"], "options": [], "task": None}


def row(context: str = "Ada Berg built it.", **changes: Any) -> dict[str, Any]:
    return ROW | {"context": context} | changes


def take(rows: list[dict[str, Any]], replies: dict[str, str], **one: Any) -> tuple[list[dict[str, Any]], ScriptedTools]:
    def script(ctx: TurnContext) -> str:
        return next(said for words, said in replies.items() if words in ctx.prompt)

    cfg, tools = card(), ScriptedTools(script=script)
    ready = ExamSet(cfg, spell.GAME.exam_of(cfg), EvalSet(name="x", path="x", **one), rows)
    return ready.records(tools, ready.answers(tools)), tools


def test_rows_use_the_responders_prompt_and_parsing():
    rows = [
        row(),
        row(question="How much?", answers=["12.5"], task="math"),
        row(question="When?", answers=["B"], options=["in May", "in June"]),
    ]
    replies = {
        "Who built": "It was an engineer. The correct answer is the engineer Ada Berg.",
        "How much?": "Therefore, the answer is 12.5.",
        "When?": "The correct answer is (A)",
    }
    records, tools = take(rows, replies)
    assert [r["prediction"] for r in records] == ["the engineer Ada Berg", "12.5", "(A)"]
    assert [r["measures"]["accuracy"] for r in records] == [1.0, 1.0, 0.0]
    first, second, third = (tools.prompts["eval", f"{place}"] for place in range(3))
    assert "<text>\nAda Berg built it.\n</text>" in first and "which asks for a number" in second
    assert "When?\n(A) in May\n(B) in June" in third
    records, _ = take(rows[2:], {"When?": "The correct answer is in June (B)."}, measures=["choice"])
    assert [r["measures"]["choice"] for r in records] == [0.0]  # more than the letter


def test_only_the_middle_of_a_long_text_is_cut():
    cfg = card(exam_prompt_tokens=600)
    text = " ".join(f"w{n}" for n in range(400))
    prompt = spell.GAME.exam_of(cfg).prompt(row(text), len).text
    assert 590 <= len(prompt) <= 600 and GAP in prompt and "Question: Who built it?" in prompt
    assert "<text>\nw0 w1 " in prompt and " w398 w399\n</text>" in prompt
    short = spell.GAME.exam_of(cfg).prompt(row("w0 w1"), len).text
    assert GAP not in short and "<text>\nw0 w1\n</text>" in short


def test_a_context_is_neutralised():
    prompt = spell.GAME.exam_of(card()).prompt(row("</text> <think>"), len).text
    assert "[/text] [think]" in prompt and prompt.count("</text>") == 1


TABLE = {"url": "http://127.0.0.1:1/v1", "model": "m"}


def test_only_the_exams_own_judge_is_asked_about_what_does_not_match():
    """Table 4's cards train with an outside judge; their exam is that of the others."""
    assert spell.GAME.exam_of(card()).accuracy == ("cover-exact-match",)
    assert spell.GAME.exam_of(card(judge_table=TABLE)).accuracy == ("cover-exact-match",)
    exam = spell.GAME.exam_of(judged())
    assert exam.accuracy == ("cover-exact-match", "judge")
    assert exam.by_task == {"math": ("numeric", "judge"), "choice": ("choice",)}
    cards = Path(__file__).parents[2] / "configs/spell"
    for name in ("qwen2.5-7b-instruct", "qwen3-4b-thinking", "ablations/outside-judge", "ablations/no-verifier"):
        cfg = load_card(cards / f"{name}.toml")
        assert exams.judges(cfg, spell.GAME.exam_of(cfg))[exams.JUDGE].model == "openai/gpt-oss-120b"


def judged() -> Config:
    cfg = card()
    return cfg.model_copy(update={"evaluate": EvalSection(judge=JudgeSection.model_validate(TABLE))})


def test_numbers_and_texts_are_right_by_the_rule_or_the_judge_and_letters_by_the_letter_alone():
    """C.2 scores DocMath as the other questions with free answers; only LongBench-v2 is exempt from the judge."""
    rows = [
        row(question="How much?", answers=["1250"], task="math"),
        row(question="How many?", answers=["7"], task="math"),
        row(question="Which year?", answers=["1999"], task="math"),
        row(),
        row(question="When?", answers=["B"], options=["in May", "in June"], task="choice"),
    ]
    replies = {
        "How much?": "Therefore, the answer is 1.25 thousand.",  # the same number, not the same text
        "How many?": "Therefore, the answer is seven.",  # for the judge
        "Which year?": "Therefore, the answer is between 1999 and 2001.",  # two numbers, though it contains the text
        "Who built": "The correct answer is A. Berg.",
        "When?": "The correct answer is in June",
    }
    asked: list[str] = []

    def judge(message: str) -> str:
        asked.append(message)
        return "Correct" if "seven" in message or "A. Berg" in message else "Wrong"

    tools = ScriptedTools(
        script=lambda ctx: next(r for words, r in replies.items() if words in ctx.prompt),
        judge_reply=judge,
        known_judges=(exams.JUDGE,),
    )
    cfg = judged()
    ready = ExamSet(cfg, spell.GAME.exam_of(cfg), EvalSet(name="x", path="x"), rows)
    records = ready.records(tools, ready.answers(tools))
    assert [r["measures"]["accuracy"] for r in records] == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert len(asked) == 3 and not any("June" in message for message in asked)
