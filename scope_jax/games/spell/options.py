"""The [spell] table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Section, Weight, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import AdvantageCard, LossCard
from scope_jax.config.tables import SamplingSection, differing

SpellTask = Literal["qa", "math", "choice"]  # document QA, financial math QA, multiple choice: section 5.1
SpellRole = Literal["questioner", "responder", "verifier"]
RuleText = Literal["response", "answer"]
Containment = Literal["plain", "careful"]
QuestionerReward = Literal["gaussian", "absolute-zero", "r-zero"]
Vote = Literal["majority", "single"]
Reward = Annotated[float, Field(ge=-100, le=1)]
SPELL_SAMPLING = SamplingSection(temperature=0.7, top_p=0.95, max_tokens=4096, max_response_tokens=4096)


class SpellRoleSection(Section):
    """How a role samples; all roles share one loss, see `SpellSection.loss`."""

    max_prompt_tokens: Count = 16384
    """Most tokens of a prompt; longer ones are not sampled (section 5.1: 16K)."""
    sampling: SamplingSection = SPELL_SAMPLING
    """How it samples (section 5.1: temperature 0.7, top-p 0.95, outputs of 4K tokens)."""


class SpellGroupSection(SpellRoleSection):
    """How a role with several samples per prompt samples."""

    samples: Count = 8
    """G, samples of each prompt (section 5.1)."""

    @model_validator(mode="after")
    def _samples_differ(self) -> SpellGroupSection:
        differing(self.samples, self.sampling)
        return self


class SpellSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("spell")
    """Folder of prompt files `questioner_<task>`, `earlier_<task>` (about the questions of the history),
    `responder_<task>`, `nothing` (instead of the documents), `verifier`, `judge`, all `.txt`;
    `<role>_<task>.system.txt` is an optional system message. Default: the package's."""
    mode: Literal["self-play", "given-questions"] = "self-play"
    """`self-play`, or `given-questions`: the RLVR baseline, on `data.questions` (App. C.4)."""
    train: tuple[SpellRole, ...] = Field(default=("questioner", "responder", "verifier"), strict=False)
    """The roles that are trained, of `questioner`, `responder`, `verifier`; the others still generate episodes (Eq.
    (10))."""
    tasks: dict[SpellTask, Weight] = {"qa": 1.0, "math": 1.0, "choice": 1.0}
    """Relative frequency of each task (`qa`: documents, `math`: numbers in financial reports, `choice`: multiple
    choice), for clusters that allow several."""
    families: dict[str, Annotated[tuple[SpellTask, ...], Field(strict=False, min_length=1)]] = {}
    """Allowed tasks of each family of clusters, by its name; default: the task with the family's name, or all."""
    groups: Count = 128
    """N: groups with correct and incorrect answers per step (section 5.1)."""
    clusters_per_round: Count = 480
    """Clusters drawn at a time, until a step has enough such groups (released code)."""
    max_rounds: Count = 10
    """Most rounds of a step, which then uses the groups it has (`groups/full` is 0); released code: the run ends."""
    # the questioner
    documents: Count = 5
    """m: new documents per question (section 5.1)."""
    history: Whole = 3
    """L: questions remembered per cluster and task (section 5.1); 0: no history memory, an ablation of Table 2."""
    history_documents: Literal["new", "seen"] = (
        "new"  # stored in an entry: C_new (Alg. 1 l.21), or all read; code: seen
    )
    """Remembered documents of a question: the `new` ones (C_new, Alg. 1 l.21), or all that were `seen` with it
    (released code)."""
    history_accepts: Literal["mixed", "solved"] = "mixed"
    """Which questions are remembered: `mixed`, with correct and incorrect answers (Alg. 1 l.20), or also those always
    `solved` (released code)."""
    all_seen: Literal["stay", "reset"] = "stay"
    """When all documents of a cluster are in the history: `stay` with those (released code), or `reset` it."""
    max_answer_tokens: Count = 20
    """Most tokens of a reference answer (App. E; released code: 40); a longer one is malformed."""
    grounding_filter: bool = True
    """Drop questions that are answered correctly without documents; false: an ablation of Table 2."""
    questioner: SpellRoleSection = SpellRoleSection()
    """The role that writes questions."""
    responder: SpellGroupSection = SpellGroupSection()
    """The role that answers them."""
    rule: Literal["match", "judge"] = "match"
    """Source of R_rule in Eq. (6): the rule (`match`), or the external model of `[judge]` (`judge`, Table 4)."""
    rule_reads: RuleText = "answer"
    """What the rule reads for `qa`: the conclusion (`answer`; released code), or the whole `response` (section 4.2 as
    printed)."""
    containment: Containment = "plain"
    """When a `qa` conclusion contains the answer: `plain`, whenever its words are in it (section 4.2, released code),
    or `careful`, if it also names no other candidate."""
    # the verifier
    verify: bool = True
    """False: no verifier, only the rule; an ablation of Table 2."""
    vote: Vote = "majority"
    """How G judgments decide: by `majority` (Eq. (4)), or `single`: only the first counts, an ablation of Table 2."""
    consistency_check: bool = True
    """Train the verifier only where vote and rule agree; false: an ablation of Table 2."""
    verifier_batch: Literal["judgments", "groups"] = "judgments"
    """What is matched to the number of questions: `judgments` of the verifier, or `groups` of them."""
    malformed_judgment: Reward = 0.0
    """Reward of a judgment without a verdict (Eq. (5); released code: -1)."""
    verifier: SpellGroupSection = SpellGroupSection()
    """The role that judges the answers."""
    questioner_reward: QuestionerReward = "gaussian"
    """Reward of a share r̄ between 0 and 1: `gaussian`, Eq. (7), or the mappings of Fig. 5, `absolute-zero` (1 − r̄)
    and `r-zero` (1 − 2·abs(r̄ − ½))."""
    target: float = Field(default=0.5, gt=0, lt=1)
    """μ of Eq. (7); only for `gaussian`."""
    width: float = Field(default=0.5 / 3, gt=0, le=10)
    """σ of Eq. (7); only for `gaussian`."""
    ungrounded_reward: Reward = -0.5
    """Reward of a question that is answered correctly without documents."""
    malformed_reward: Reward = -1.0
    """Reward of a malformed question; 0: without the format penalty, an ablation of Table 2."""
    exam_prompt_tokens: Count = 16384
    """Most tokens of a prompt in an exam (C.2: 16K, or 100K); the middle of a longer context is cut out."""
    loss: LossCard = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")
    """The loss of the one update of all roles (Eq. (8), Eq. (10), App. C.3)."""
    questioner_advantage: AdvantageCard = AdvantageCard(advantage="batch-zscore")
    """Advantage of questions (Eq. (9)); `group-zscore` compares questions of the same task."""

    @field_validator("mode", mode="before")
    @classmethod
    def _former(cls, mode: object) -> object:
        if mode == "rlvr":
            raise ValueError('"rlvr" is called "given-questions" now; write that (RL on any rows: system = "rlvr")')
        return mode

    @model_validator(mode="after")
    def _consistent(self) -> SpellSection:
        if not self.train or len(set(self.train)) < len(self.train):
            raise ValueError("train must list at least one role, each once")
        if "verifier" in self.train and not self.verify:
            raise ValueError('verify = false leaves nothing to train the verifier on; remove "verifier" from train')
        if self.mode == "given-questions" and (self.train != ("responder",) or self.verify):
            raise ValueError(
                'mode = "given-questions" has neither questioner nor verifier; set train = ["responder"] and '
                "verify = false"
            )
        compared = {"responder": self.responder} | ({"verifier": self.verifier} if "verifier" in self.train else {})
        for role, card in compared.items():
            if card.samples < 2:
                raise ValueError(
                    f"{role} is trained by comparing the samples of a prompt; set {role}.samples to at least 2"
                )
        if not any(self.tasks.values()):
            raise ValueError("tasks must hold at least one share above 0")
        changed = self.changed
        if not self.verify and (
            useless := changed("vote", "consistency_check", "verifier_batch", "malformed_judgment")
        ):
            raise ValueError(f"verify = false leaves no judgments, to which {useless[0]} applies: remove it")
        if self.containment == "careful" and self.rule_reads == "response":
            raise ValueError(
                'containment = "careful" reads a conclusion, but rule_reads = "response" reads the whole reply; set '
                "one of them back to its default"
            )
        if self.questioner_reward != "gaussian" and changed("target", "width"):
            raise ValueError(
                f'target and width shape the gaussian reward; questioner_reward = "{self.questioner_reward}"'
                " has neither: remove them"
            )
        return self


def options(cfg: Config) -> SpellSection:
    """The card's [spell] table."""
    return cfg.options(SpellSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless [spell] and the card's other tables go together."""
    card = options(cfg)
    given = card.mode == "given-questions"
    if not given and cfg.data.clusters is None:
        raise ValueError("data.clusters is missing; SPELL needs a file of clusters of documents (docs/data.md)")
    if given and cfg.data.questions is None:
        raise ValueError(
            'data.questions is missing; spell.mode = "given-questions" needs a file of questions with answers and '
            "context (docs/data.md)"
        )
    if cfg.judge is None and card.rule == "judge":
        raise ValueError(
            'spell.rule = "judge" needs an external model, but the card has no [judge] table; add one, or set '
            'spell.rule = "match"'
        )
