"""SPELL's rules as pure functions: parsers of its roles' outputs, rewards, and what a step trains on."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_jax.config import one_of
from scope_jax.data.keys import drawn
from scope_jax.games.spell import candidates
from scope_jax.games.spell.options import Containment, QuestionerReward, RuleText, SpellSection, SpellTask, Vote
from scope_jax.games.spell.state import AnswerGroup, Question, QuestionDraft, Selection
from scope_jax.grading import measures
from scope_jax.grading.rewards import learnability, uncertainty
from scope_jax.play.step import Step
from scope_jax.text.objects import has_control, last_object
from scope_jax.text.parsing import with_options_below

LETTERS = ("A", "B", "C", "D")  # labels of a questioner's options
# Why a question is malformed (−1 in Eq. (7)): the requirement that the questioner's reply fails.
MALFORMED = (
    "no_object",  # no JSON object at the end
    "wrong_keys",
    "no_text",  # a value that is not text, or is blank
    "wrong_options",  # not four distinct options
    "no_letter",  # the answer does not name an option
    "no_number",  # the answer is not exactly one number
    "zero",  # that number is 0
    "answer_too_long",
)
UNGROUNDED = "ungrounded"  # answered correctly without the documents
# Prompts too long to be sampled: no role is trained on these questions.
UNPLAYED = ("prompt_too_long", "documents_too_long")
REASONS = (*MALFORMED, UNGROUNDED, *UNPLAYED)

_CONCLUSION = re.compile(r"\banswer\s++is\b\s*+[:：]?", re.IGNORECASE)
_DOTS = re.compile(r"[\W_]*[.…][\W_]*")  # the placeholder of our prompts, copied
_VERDICT = re.compile(r"\[\[\s{0,8}(YES|NO)\s{0,8}\]\]", re.IGNORECASE)


# ------------------------------------------------------------------------------------------------------------- reading
def question_of(
    text: str, task: str, tokens: Callable[[str], int], max_answer_tokens: int
) -> tuple[Question | None, str]:
    """(question, ""), or (None, a reason from `MALFORMED`), parsed from a questioner's reply without thinking (App. E).

    Raises ValueError for an unknown `task`.
    """
    one_of("task", task, SpellTask)
    fields = last_object(text)
    if fields is None or has_control(fields):
        return None, "no_object"
    keys = {"question", "answer"} | ({"options"} if task == "choice" else set())
    if set(fields) != keys:
        return None, "wrong_keys"
    question, answer = _text(fields["question"]), _text(fields["answer"], numbers=task == "math")
    if question is None or answer is None:
        return None, "no_text"
    if task == "choice":
        return _choice(question, answer, fields["options"])
    if task == "math":
        read = measures.readings(answer)
        if read is None:
            return None, "no_number"
        if read[0][0] == 0.0:
            return None, "zero"
    if tokens(answer) > max_answer_tokens:
        return None, "answer_too_long"
    return Question(question, answer), ""


def _text(value: Any, numbers: bool = False) -> str | None:
    """A text value, stripped; None if it is blank, dots or not text. numbers: JSON numbers are accepted as text."""
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    return value.strip() or None if isinstance(value, str) and not _DOTS.fullmatch(value) else None


def _choice(question: str, answer: str, given: Any) -> tuple[Question | None, str]:
    if not isinstance(given, dict) or tuple(sorted(given)) != LETTERS:
        return None, "wrong_options"
    texts = [_text(given[letter], numbers=True) for letter in LETTERS]
    present = tuple(text for text in texts if text is not None)
    if len({" ".join(text.lower().split()) for text in present}) < len(LETTERS):
        return None, "wrong_options"
    chosen = measures.letter(answer)
    return (Question(question, chosen, present), "") if chosen in LETTERS else (None, "no_letter")


def conclusion_of(text: str) -> str | None:
    """A responder's conclusion: the rest of the line after its last "answer is", or the list of options that begins
    there (`with_options_below`); None if it has none.

    Surrounding asterisks and a final full stop are removed. Brackets are kept: (1,234) may be a negative number. The
    dots that stand for the answer in our prompts are none.
    """
    marks = deque(_CONCLUSION.finditer(text), maxlen=1)
    if not marks:
        return None
    line = with_options_below(text[marks[0].end() :].lstrip(" \t\n*")).strip().strip("*").strip()
    if _DOTS.fullmatch(line):
        return None
    return line.removesuffix(".").rstrip().rstrip("*").rstrip() or None


def verdict_of(text: str) -> bool | None:
    """True for [[YES]], False for [[NO]], in a reply without thinking; None for both or neither (App. E)."""
    verdicts = {match[1].upper() for match in _VERDICT.finditer(text)}
    return verdicts == {"YES"} if len(verdicts) == 1 else None


# ----------------------------------------------------------------------------------------------- the rule-based reward
def matches(
    task: str, response: str, conclusion: str | None, references: Sequence[str], reads: str, containment: str
) -> bool:
    """R_rule(y, a), by task: cover exact match (qa), a number within 0.15 % (math), or an option's letter (choice).
    True if the response matches one of the references.

    Numbers and letters are read from the conclusion. For qa, reads: "answer" for the conclusion, or "response" for the
    whole response, which naming every candidate also passes (section 4.2 as printed). containment: "plain" for cover
    exact match, or "careful" if the conclusion must also name no other candidate (`candidates.names_only`). Raises
    ValueError for unknown values.
    """
    one_of("task", task, SpellTask)
    one_of("reads", reads, RuleText)
    one_of("containment", containment, Containment)
    if task == "qa" and reads == "response":
        return measures.cover_exact_match(response, references)
    if conclusion is None:
        return False
    qa = candidates.names_only if containment == "careful" else measures.cover_exact_match
    return {"qa": qa, "math": measures.numeric, "choice": measures.choice}[task](conclusion, references)


# ------------------------------------------------------------------------------------------------------------- rewards
def vote(verdicts: Sequence[bool | None], rule: str) -> bool:
    """v_i: "majority", 1(Σ_j v_ij > G/2) (Eq. (4)), or "single", the first judgment.

    A judgment without a verdict does not count as a yes; a tie or no judgments at all give False. Raises ValueError
    for an unknown `rule`.
    """
    one_of("vote", rule, Vote)
    if rule == "single":
        return bool(verdicts and verdicts[0])
    return 2 * sum(verdict is True for verdict in verdicts) > len(verdicts)


def verifier_reward(verdict: bool | None, decision: bool, malformed: float) -> float:
    """r_ij = 1(v_ij = v_i) (Eq. (5)); `malformed` for a judgment without a verdict."""
    return malformed if verdict is None else float(verdict == decision)


def questioner_reward(name: str, success: float, target: float, width: float) -> float:
    """The reward of a well-formed, grounded question by its success rate r̄, 0 unless 0 < r̄ < 1.

    gaussian: exp(−(r̄ − μ)²/(2σ²)) (Eq. (7)). The mappings it is compared with in Fig. 5: absolute-zero, 1 − r̄; r-zero,
    1 − 2 |r̄ − 1/2|. Raises ValueError for an unknown name.
    """
    one_of("name", name, QuestionerReward)
    if not 0.0 < success < 1.0:
        return 0.0
    if name == "gaussian":
        return math.exp(-((success - target) ** 2) / (2 * width**2))
    return {"absolute-zero": learnability, "r-zero": uncertainty}[name](success)


def allowed_tasks(shares: Mapping[str, float], families: Mapping[str, Sequence[str]], family: str | None) -> list[str]:
    """The tasks with a share above 0 that a cluster suits: those `families` lists for its family, or the task with the
    family's name, or else all."""
    listed = families.get(family or "", (family,) if family in shares else tuple(shares))
    return [task for task, share in shares.items() if share > 0 and task in listed]


# --------------------------------------------------------------------------------------- role-specific dynamic sampling
def choose(step: Step[SpellSection], drafts: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]) -> Selection:
    """Chooses the samples the step's update trains on (Alg. 1 l.25).

    Responder: the first N groups with both correct and wrong answers. Questioner: their questions, and an equal number
    drawn from the questions with a reward of 0 or less, for whatever reason (all if there are fewer). Verifier: groups
    of judgments with unequal rewards, on answers where vote and rule agree (consistency check), drawn until there are
    as many judgments, or groups, as responder groups (all if there are fewer).
    """
    card = step.card
    mixed = [group.reading.position for group in groups if group.mixed]
    responder = mixed[: card.groups]
    positions = [draft.context.position for draft in drafts if draft.reason not in UNPLAYED]
    failures = [position for position in positions if position not in mixed]
    negatives = drawn(failures, len(responder), step.rng("spell negatives", step.number))
    conflicts = [
        answer.name
        for group in groups
        for answer in group.answers
        if answer.conflicting and (answer.vote == answer.rule or not card.consistency_check)
    ]
    count = len(responder)
    if card.verifier_batch == "judgments":
        count = -(-count // card.verifier.samples)
    verifier = drawn(conflicts, count, step.rng("spell judgments", step.number))
    return Selection(frozenset(responder), frozenset([*responder, *negatives]), frozenset(verifier))
