"""How rows of published data sets become rows of ours: one recipe per file that cards and exams name.

A recipe knows where the data set is on the hub, the kind of its rows, and how one published row becomes one of ours. It
gets the row as it is, and raises DataError, with the place, for a row that lacks what it needs; the schema of the kind
checks the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.data.corpus import DOCUMENT, passage
from scope_jax.data.rows import DataError, Row, optional, required
from scope_jax.data.schemas import Kind
from scope_jax.text.strict_json import kind_of

Make = Callable[[Row, str], Row]


@dataclass(frozen=True)
class Recipe:
    """about: the data set and the format of its rows. hub, config, split: where it is; None: only from files.

    baseline: the rows need a second file, with the answers of a baseline, see `joined`.
    """

    about: str
    kind: Kind
    make: Make
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    baseline: bool = False


def _of(row: Row, where: str, name: str, *columns: str) -> Any:
    """The first of these columns that is neither null nor []; a dot reaches into nested objects."""
    for column in columns:
        if "." in column:
            value: Any = row
            for part in column.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        else:
            value = row.get(column)
        if value not in (None, []):
            return value
    return required(row, where, name, columns, {})[1]  # raises


def _key(row: Row, *columns: str) -> dict[str, Any]:
    """The row's own id, if it has one, as text."""
    value = next((row[name] for name in columns if row.get(name) not in (None, "")), None)
    return {} if value is None else {"id": str(value)}


def _texts(value: Any, where: str, name: str) -> list[str]:
    """One text or number, or a list of them, as texts."""
    found = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise DataError(f"{where}: the {name} is {kind_of(item)}, not text; fix or remove the row.")
        found.append(item if isinstance(item, str) else repr(item))
    return found


# ------------------------------------------------------------------------------------------------------------ questions
def question(row: Row, where: str) -> Row:
    """FlashRAG, Search-R1 and most others: question, golden_answers or answer; aliases are answers too."""
    answers = _texts(_of(row, where, "answers", "golden_answers", "answers", "answer", "Answer"), where, "answer")
    aliases = row.get("answer_aliases") or row.get("aliases") or []
    return {
        **_key(row, "id", "_id", "unique_id", "Unnamed: 0"),
        "question": _of(row, where, "question", "question", "problem", "query", "Prompt", "prompt"),
        "answers": list(dict.fromkeys([*answers, *_texts(aliases, where, "alias")])),
    }


def gsm8k(row: Row, where: str) -> Row:
    """GSM8K: the answer follows "####" at the end of the solution, with commas in large numbers."""
    solution = _of(row, where, "answer", "answer")
    if not isinstance(solution, str) or "####" not in solution:
        raise DataError(f'{where}: the answer has no "####" before the result; fix or remove the row.')
    return {"question": row.get("question"), "answers": [solution.rpartition("####")[2].strip().replace(",", "")]}


def integer(row: Row, where: str) -> Row:
    """AIME and AMC: an integer, also where the file writes 033 or 27.0."""
    made = question(row, where)
    return made | {"answers": [_integer(answer, where) for answer in made["answers"]]}


def _integer(answer: str, where: str) -> str:
    try:
        value = float(answer)
    except ValueError:
        raise DataError(f"{where}: the answer {answer[:40]!r} is not a number; correct or remove the row.") from None
    return str(int(value)) if value.is_integer() else answer


def olympiad(row: Row, where: str) -> Row:
    """OlympiadBench: the list final_answer holds one answer, which may be several values, in dollars."""
    answers = _texts(_of(row, where, "answers", "final_answer", "answer"), where, "answer")
    asked = _of(row, where, "question", "question", "problem")
    return _key(row, "id") | {"question": asked, "answers": [", ".join(answers)]}


def bbeh(row: Row, where: str) -> Row:
    """BIG-Bench Extra Hard: input and target; as in its own scorer also without the brackets of a letter, and without
    spaces after commas."""
    targets = _texts(_of(row, where, "answers", "target", "answer"), where, "target")
    forms = [
        form for target in targets for form in (target, re.sub(r"^\((\w)\)$", r"\1", target), target.replace(", ", ","))
    ]
    return {"question": _of(row, where, "question", "input", "question"), "answers": list(dict.fromkeys(forms))}


# -------------------------------------------------------------------------------------------------------------- choices
def options(row: Row, where: str) -> Row:
    """MMLU-Pro and SuperGPQA: options, and the letter of the answer."""
    letters = _texts(_of(row, where, "answers", "answer_letter", "answer", "answers"), where, "answer")
    listed = [option for option in _of(row, where, "options", "options", "choices") if option != "N/A"]
    asked = _of(row, where, "question", "question")
    return {**_key(row, "question_id", "uuid", "id"), "question": asked, "options": listed, "answers": letters}


def gpqa(row: Row, where: str) -> Row:
    """GPQA: one correct and three incorrect answers, put into an order by a hash of the question."""
    asked = _of(row, where, "question", "Question", "question")
    right = str(_of(row, where, "answers", "Correct Answer")).strip()
    wrong = [str(_of(row, where, "options", f"Incorrect Answer {place}")).strip() for place in (1, 2, 3)]

    def place(option: str) -> str:
        return hashlib.sha256(f"{asked}\n{option}".encode()).hexdigest()

    ordered = sorted([right, *wrong], key=place)
    return {"question": asked, "options": ordered, "answers": [chr(ord("A") + ordered.index(right))]}


# -------------------------------------------------------------------------------------------------------------- rubrics
def criteria(row: Row, where: str) -> Row:
    """ResearchRubrics, ResearchQA, ResearchPlanGen: a rubric of texts, or of objects with criterion or rubric_item."""
    items = _of(row, where, "rubric", "rubrics", "rubric", "Rubric")
    if not isinstance(items, list):
        raise DataError(f"{where}: the rubric is {kind_of(items)}, not a list; fix or remove the row.")
    asked = _of(row, where, "question", "prompt", "query", "question", "Goal", "goal")
    return _key(row, "id", "sample_id", "q_id") | {"question": asked, "rubric": [_item(item) for item in items]}


def _item(item: Any) -> Any:
    if isinstance(item, str):
        return {"criterion": item}
    if not isinstance(item, Mapping):
        return item  # the schema says what is wrong with it
    text = next((item[name] for name in ("criterion", "rubric_item", "rubric", "description") if item.get(name)), None)
    weight = next((item[name] for name in ("weight", "points") if item.get(name) is not None), 1.0)
    return {"criterion": text, "weight": weight}


def healthbench(row: Row, where: str) -> Row:
    """HealthBench: a conversation, and criteria whose points may be negative; its canary stays with every row."""
    kept = {} if row.get("canary") is None else {"canary": row["canary"]}
    items = [_item(item) for item in _of(row, where, "rubric", "rubrics", "rubric")]
    talk = _of(row, where, "question", "prompt", "messages")
    return {**_key(row, "prompt_id", "id"), "messages": talk, "rubric": items, **kept}


def deep_research(row: Row, where: str) -> Row:
    """DeepResearch Bench, criteria.jsonl: criteria by dimension, with the weight of each dimension."""
    listed = _of(row, where, "rubric", "criterions", "rubric")
    if isinstance(listed, Mapping):
        listed = [{"dimension": dimension, **item} for dimension, items in listed.items() for item in items]
    names = ("dimension", "criterion", "explanation", "weight")
    rubric = [{name: item[name] for name in names if name in item} for item in listed]
    asked = _of(row, where, "question", "prompt", "question")
    return {**_key(row, "id"), "question": asked, "dimension_weight": row.get("dimension_weight"), "rubric": rubric}


def scholarqa(row: Row, where: str) -> Row:
    """ScholarQA-CS: the weighted properties of an answer, in metric_config, or a rubric."""
    items = _of(row, where, "rubric", "metric_config.config.other_properties", "ingredients", "rubric")
    asked = _of(row, where, "question", "metric_config.config.question", "initial_prompt", "question")
    return _key(row, "case_id", "id") | {"question": asked, "rubric": [_item(item) for item in items]}


def wildbench(row: Row, where: str) -> Row:
    """WildBench v2: a conversation, and the checklist for the grader."""
    talk = [
        {"role": turn.get("role"), "content": turn.get("content")}
        for turn in _of(row, where, "question", "conversation_input")
    ]
    asked = {"question": talk[0]["content"]} if len(talk) == 1 else {"messages": talk}
    checks = [_item(item) for item in _of(row, where, "checklist", "checklist")]
    return {**_key(row, "session_id", "id"), **asked, "rubric": checks}


def arena_hard(row: Row, where: str) -> Row:
    """Arena-Hard v2.0: its prompts of creative writing, {} for others; the baseline's answer is in the second file."""
    if row.get("category") not in (None, "creative_writing"):
        return {}  # another part of the benchmark
    return {
        "id": str(_of(row, where, "id", "uid", "id")),
        "question": _of(row, where, "question", "prompt", "question"),
    }


def joined(baseline: Sequence[tuple[str, Row]], make: Make) -> Make:
    """`make` with the answers of a baseline: rows with uid, and messages whose last content (or its `answer`) it is."""
    answers = {}
    for where, row in baseline:
        messages = _of(row, where, "answers", "messages")
        last = messages[-1] if isinstance(messages, list) else None
        content = last.get("content") if isinstance(last, Mapping) else None
        answer = content.get("answer") if isinstance(content, Mapping) else content
        if not isinstance(answer, str):
            raise DataError(f"{where}: `messages` is not a list that ends with an answer; give a file of answers.")
        answers[str(_of(row, where, "id", "uid", "id"))] = answer

    def with_answer(row: Row, where: str) -> Row:
        made = make(row, where)
        if made and made["id"] not in answers:
            raise DataError(f"{where}: the baseline has no answer to {made['id']}; give the file of all its answers.")
        return made | {"answers": [answers[made["id"]]]} if made else made

    return with_answer


# ------------------------------------------------------------------------------------------------------------- readings
def longbench(row: Row, where: str) -> Row:
    """LongBench: input, context, answers."""
    return {
        **_key(row, "_id", "id"),
        "question": _of(row, where, "question", "input", "question"),
        "context": _of(row, where, "context", "context"),
        "answers": _texts(_of(row, where, "answers", "answers", "answer"), where, "answer"),
    }


def longbench2(row: Row, where: str) -> Row:
    """LongBench v2: question, context, choice_A to choice_D, the letter of the answer."""
    listed = [str(_of(row, where, "options", f"choice_{letter}")) for letter in "ABCD"]
    asked = {"question": row.get("question"), "context": row.get("context")}
    return {**_key(row, "_id"), **asked, "options": listed, "answers": [row.get("answer")], "task": "choice"}


def docmath(row: Row, where: str) -> Row:
    """DocMath-Eval: paragraphs of a report, and a number."""
    answer = _of(row, where, "answers", "ground_truth", "answer")
    return {
        **_key(row, "question_id", "id"),
        "question": _of(row, where, "question", "question"),
        "context": _of(row, where, "context", "paragraphs", "context"),
        "answers": _texts(answer, where, "ground truth"),
        "task": "math",
    }


def frames_long(row: Row, where: str) -> Row:
    """FRAMES with the texts of its pages: `wiki_items`, as SPELL's code reads it, or `context` or `documents`."""
    context = _of(row, where, "context", "wiki_items", "context", "documents", "wiki_texts")
    return question(row, where) | {"context": context}


# -------------------------------------------------------------------------------------------------------- for training
def ssp_answers(row: Row, where: str) -> Row:
    """Quark-LLM/SSP: ground_truth, and the number of searches asked for."""
    answers = _texts(_of(row, where, "answers", "ground_truth", "answer", "answers"), where, "answer")
    turns = row.get("search_turns")
    return {"answers": answers} | ({} if turns is None else {"search_turns": turns})


def verl(row: Row, where: str) -> Row:
    """Rows prepared for veRL (Search-R1, SCOPE's and SPELL's codes): the answer in reward_model.ground_truth."""
    target = _of(
        row, where, "answers", "reward_model.ground_truth.target", "reward_model.ground_truth", "golden_answers"
    )
    asked = row.get("question") or _of(row, where, "question", "extra_info.question", "prompt")
    if isinstance(asked, list):  # a conversation: its last message
        asked = asked[-1].get("content") if isinstance(asked[-1], Mapping) else None
    return _key(row, "id") | {"question": asked, "answers": _texts(target, where, "answer")}


def document(row: Row, where: str) -> Row:
    """Any corpus: text with an optional title, or Search-R1's contents with the title in the first line.

    Raises DataError for a row without a text, and says so if it is a question with an answer (NaturalReasoning).
    """
    if "question" in row and not {"text", "contents"} & row.keys():
        raise DataError(
            f"{where}: is a question, not a document; give pages with a `text` (the rows of NaturalReasoning are "
            "questions with reference answers: take pages of DCLM, which they were written from)."
        )
    made = passage(row, where, {}, 0)
    _, given = optional(row, where, "id", DOCUMENT["id"], {})
    return {name: value for name, value in made.items() if name != "id" or given is not None}


def spell_clusters(row: Row, where: str) -> Row:
    """SPELL's published training sets: `paragraphs` of a report, for math, or of related pages, which the code divides
    between qa and choice at random, and this by a hash of the id."""
    source, key = str(_of(row, where, "family", "data_source")), str(_of(row, where, "id", "question_id"))
    even = hashlib.sha256(key.encode()).digest()[0] % 2 == 0
    family = "math" if source.startswith("docmath") else ("qa" if even else "choice")
    paragraphs = _of(row, where, "documents", "paragraphs")
    if not isinstance(paragraphs, list):
        raise DataError(f"{where}: `paragraphs` is {kind_of(paragraphs)}, not a list; fix or remove the row.")
    texts = [text for text in _texts(paragraphs, where, "paragraph") if text.strip()]
    documents = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    return {"id": f"{source}-{key}", "family": family, "documents": documents}


def query(row: Row, where: str) -> Row:
    """Any requests of users: a question, or a Reddit post's title and text."""
    asked = row.get("question") or row.get("query") or row.get("prompt")
    if asked is None:
        asked = "\n\n".join(part for part in (row.get("title"), row.get("selftext")) if part)
    return {"question": asked}


def prompts(row: Row, where: str) -> Row:
    """Any prompts with rubrics, such as those of Dr. Tulu for SCOPE's baseline."""
    return criteria(row, where) if "messages" not in row else healthbench(row, where)


_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
RECIPES: Mapping[str, Recipe] = {
    **{
        name: Recipe("FlashRAG's questions", "questions", question, _FLASHRAG, name, split)
        for name, split in (
            ("nq", "test"),
            ("triviaqa", "test"),
            ("popqa", "test"),
            ("hotpotqa", "dev"),
            ("2wikimultihopqa", "dev"),
            ("musique", "dev"),
            ("bamboogle", "test"),
        )
    },
    "simpleqa": Recipe("SimpleQA: problem, answer", "questions", question, "basicv8vc/SimpleQA"),
    "frames": Recipe("FRAMES: Prompt, Answer", "questions", question, "google/frames-benchmark"),
    "math500": Recipe("MATH-500: problem, answer", "questions", question, "HuggingFaceH4/MATH-500"),
    "gsm8k": Recipe("GSM8K: question, solution", "questions", gsm8k, "openai/gsm8k", "main"),
    "aime24": Recipe("AIME 2024: problem, answer", "questions", integer, "HuggingFaceH4/aime_2024", None, "train"),
    "aime25": Recipe("AIME 2025: problem, answer", "questions", integer, "math-ai/aime25"),
    "amc23": Recipe("AMC 2023: question, answer", "questions", integer, "math-ai/amc23"),
    "minerva": Recipe("Minerva Math: question, answer", "questions", question, "math-ai/minervamath"),
    "olympiadbench": Recipe(
        "OlympiadBench: question, final_answer",
        "questions",
        olympiad,
        "Hothan/OlympiadBench",
        "OE_TO_maths_en_COMP",
        "train",
    ),
    "bbeh": Recipe("BIG-Bench Extra Hard: input, target", "questions", bbeh, "BBEH/bbeh", None, "train"),
    "mmlu-pro": Recipe("MMLU-Pro: question, options, answer", "choices", options, "TIGER-Lab/MMLU-Pro"),
    "gpqa-diamond": Recipe("GPQA's columns", "choices", gpqa, "Idavidrein/gpqa", "gpqa_diamond", "train"),
    "supergpqa": Recipe(
        "SuperGPQA: question, options, answer_letter", "choices", options, "m-a-p/SuperGPQA", None, "train"
    ),
    "drb-race": Recipe("DeepResearch Bench's criteria.jsonl", "tasks", deep_research),
    "researchrubrics": Recipe("prompt, rubrics", "marked", criteria, "ScaleAI/researchrubrics", None, "train"),
    "researchqa": Recipe("query, rubric", "tasks", criteria, "realliyifei/ResearchQA"),
    "sqa-cs-v2": Recipe("ScholarQA-CS's test configuration", "tasks", scholarqa),
    "researchplangen": Recipe("Goal, Rubric", "tasks", criteria, "facebook/research-plan-gen", "ml"),
    "healthbench": Recipe("HealthBench: prompt, rubrics", "marked", healthbench, "openai/healthbench"),
    "wildbench": Recipe("WildBench v2: conversation_input, checklist", "tasks", wildbench, "allenai/WildBench", "v2"),
    "arena-hard-cw": Recipe("Arena-Hard v2.0's question.jsonl", "questions", arena_hard, baseline=True),
    "docmath": Recipe("DocMath-Eval's four testmini files: question, paragraphs, ground_truth", "readings", docmath),
    "frames-long": Recipe("FRAMES with the texts of its pages in `wiki_items` or `context`", "readings", frames_long),
    **{
        f"{name}-long": Recipe("LongBench: input, context, answers", "readings", longbench, "zai-org/LongBench", config)
        for name, config in (("hotpotqa", "hotpotqa"), ("2wikimultihopqa", "2wikimqa"), ("musique", "musique"))
    },
    "longbench-v2": Recipe("LongBench v2's columns", "readings", longbench2, "zai-org/LongBench-v2", None, "train"),
    "wiki-18": Recipe(
        "Search-R1's dump: id, contents", "documents", document, "PeterJinGo/wiki-18-corpus", None, "train"
    ),
    "documents": Recipe("any corpus: text, or contents; title", "documents", document),
    "ssp-answers": Recipe("SSP: ground_truth, search_turns", "answers", ssp_answers, "Quark-LLM/SSP", None, "train"),
    "spell-clusters": Recipe("SPELL's training sets: paragraphs, question_id, data_source", "clusters", spell_clusters),
    "verl": Recipe("rows prepared for veRL", "questions", verl),
    "queries": Recipe("requests: question, or title and selftext", "queries", query),
    "prompts": Recipe("prompts with rubrics", "tasks", prompts),
}
