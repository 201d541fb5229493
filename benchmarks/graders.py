"""Our graders beside lm-evaluation-harness's own code, on rows with known answers and on changed answers.

    pip install --no-deps --target harness lm_eval==0.4.13      # and what it imports (for math500 also
                                    # antlr4-python3-runtime==4.11.0); not into the pinned environment
    PYTHONPATH=.:harness python -m benchmarks.graders DATA      the figures of docs/evaluation.md
    ... --only mmlu_pro gsm8k

DATA: a folder with NAME.jsonl of `scope-jax data`. Every accepted answer of a row is graded as it is, changed in ways
that a model would write it, and replaced by the next row's. A line is one JSON object: the numbers of predictions, of
equal verdicts, and examples of different ones by kind of change. Measured, with the reasons for different verdicts:

    nq        6,737 of 6,797   57: the harness leaves out articles only where they are written "the" or "The"; 3: of
                               the answer "*" nothing is left, and ours compares the characters
    triviaqa  30,304 of 34,748 4,438: the task keeps articles, TriviaQA's own script and ours do not; 6: a capital I
                               with a dot gets longer in lower case, and the harness cuts it
    mmlu_pro  2,883 of 4,044   1,128: "Answer: B", "**(B)**" and "B" are no answer for the pattern "answer is (B)"; 33:
                               of two answers the harness takes the first, ours the last
    gsm8k     2,796 of 3,500   704: the pattern "#### number" does not read "$40", and "40.00" is another text than "40"
    math500   2,800 of 2,800   beside the score that the task calls `math_verify`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.config.exams import EvalSet
from scope_jax.data.sources import Source, load
from scope_jax.grading.math_answers import MathAnswers
from scope_jax.grading.measures import choice, same_text
from scope_jax.grading.rewards import exact_match

SHORT = {  # how a short answer may be written
    "as it is": "{}",
    "capitals": "{upper}",
    "an article": "The {}",
    "a full stop": "{}.",
    "quotation marks": '"{}"',
    "spaces": "  {} ",
    "more words": "{} and more",
}
NUMBER = {"as it is": "{}", "a dollar sign": "${}", "a full stop": "{}.", "commas": "{commas}", "decimals": "{}.00"}
CHOICE = {
    "in brackets": "Let us see. The answer is ({}).",
    "bare": "the answer is {}",
    "bold": "The answer is **({})**.",
    "a colon": "Answer: {}",
    "the letter alone": "{}",
    "changed its mind": "The answer is (A). No: the answer is ({}).",
}
FORMULA = {"as it is": "{}", "display fraction": "{dfrac}", "spaces": " {} ", "in a sentence": r"\text{{It is }} {}"}
Verdict = Callable[[str, list[str]], bool]


def written(form: str, answer: str) -> str:
    """An answer in one of the forms above."""
    commas = f"{int(answer):,}" if answer.lstrip("-").isdigit() else answer
    return form.format(answer, upper=answer.upper(), commas=commas, dfrac=answer.replace(r"\frac", r"\dfrac"))


def cases(rows: list[dict[str, Any]], forms: dict[str, str]) -> Iterator[tuple[str, str, list[str]]]:
    """(kind of change, prediction, accepted answers)."""
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        golds = row["answers"]
        for kind, form in forms.items():
            yield from ((kind, written(form, gold), golds) for gold in golds)
            yield f"{kind}, of the next row", written(form, other["answers"][0]), golds


def harness(task: str) -> tuple[Verdict, Verdict, dict[str, str]]:
    """(lm-evaluation-harness's verdict with this task's filter and metric, ours, the forms)."""
    from lm_eval.api.metrics import exact_match_fn  # type: ignore[import-not-found]
    from lm_eval.filters.extraction import RegexFilter  # type: ignore[import-not-found]

    def equal(prediction: str, golds: list[str], **how: Any) -> bool:
        return any(exact_match_fn(predictions=[prediction], references=[gold], **how)["exact_match"] for gold in golds)

    def first(pattern: str, reply: str) -> str:
        return RegexFilter(regex_pattern=pattern).apply([[reply]], [{}])[0][0]

    math = MathAnswers()
    loose = {"ignore_case": True, "ignore_punctuation": True}
    if task == "gsm8k":
        regexes = [",", r"\$", r"(?s).*#### ", r"\.$"]

        def gsm8k(prediction: str, golds: list[str]) -> bool:
            said = first(r"#### (\-?[0-9\.\,]+)", f"So it is {prediction}.\n#### {prediction}")
            return equal(said, golds, ignore_case=True, regexes_to_ignore=regexes)

        return gsm8k, lambda said, golds: same_text(said, golds) or math.equal(said, golds), NUMBER
    if task == "mmlu_pro":
        pattern = r"answer is \(?([ABCDEFGHIJ])\)?"
        return lambda said, golds: equal(first(pattern, said), golds, **loose), choice, CHOICE
    if task == "math500":
        from lm_eval.tasks.minerva_math.utils import process_results  # type: ignore[import-not-found]

        def minerva(prediction: str, golds: list[str]) -> bool:
            doc = {"solution": f"$\\boxed{{{golds[0]}}}$", "answer": golds[0]}
            return bool(process_results(doc, [f"It is $\\boxed{{{prediction}}}$."])["math_verify"])

        return minerva, lambda said, golds: same_text(said, golds) or math.equal(said, golds), FORMULA
    articles = [r"\b(?:The |the |An |A |The |a |an )"] if task == "nq" else None
    return lambda said, golds: equal(said.strip(), golds, regexes_to_ignore=articles, **loose), exact_match, SHORT


def compared(task: str, folder: Path) -> dict[str, Any]:
    """The line of one task."""
    card = EvalSet(name=task, path=str(folder / f"{task}.jsonl"))
    rows = list(load(Source(card.path, "questions", card)))
    theirs, ours, forms = harness(task)
    count, differing = 0, dict[str, Any]()
    for kind, prediction, golds in cases(rows, forms):
        one, other = ours(prediction, golds), theirs(prediction, golds)
        count += 1
        if one != other:
            found = differing.setdefault(f"{kind}: {'ours' if one else 'theirs'} accepts", {"count": 0, "examples": []})
            found["count"] += 1
            found["examples"] = [*found["examples"], [prediction, golds[:3]]][:3]
    equal = count - sum(found["count"] for found in differing.values())
    return {"task": task, "rows": len(rows), "predictions": count, "equal": equal, "differing": differing}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    tasks = ("nq", "triviaqa", "gsm8k", "mmlu_pro", "math500")
    options.add_argument("--only", nargs="+", choices=tasks, default=tasks)
    given = options.parse_args()
    for task in given.only:
        print(json.dumps(compared(task, given.data), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
