"""The [spell] table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Section, Weight, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import AdvantageCard, LossCard
from scope_jax.config.tables import SamplingSection, differing

SpellTask = Literal["qa", "math", "choice"]  # document QA, financial math QA, multiple choice: section 5.1
SpellRole = Literal["questioner", "responder", "verifier"]
RuleText = Literal["response", "answer"]
QuestionerReward = Literal["gaussian", "absolute-zero", "r-zero"]
Vote = Literal["majority", "single"]
Reward = Annotated[float, Field(ge=-100, le=1)]
# section 5.1: temperature 0.7, top-p 0.95, outputs of 4K tokens
SPELL_SAMPLING = SamplingSection(temperature=0.7, top_p=0.95, max_tokens=4096, max_response_tokens=4096)


class SpellRoleSection(Section):
    """How a role samples; all roles share one loss, see `SpellSection.loss`."""

    max_prompt_tokens: Count = 16384  # longer prompts are not sampled; section 5.1: 16K
    sampling: SamplingSection = SPELL_SAMPLING


class SpellGroupSection(SpellRoleSection):
    """The same for a role with several samples per prompt."""

    samples: Count = 8  # G, section 5.1

    @model_validator(mode="after")
    def _samples_differ(self) -> SpellGroupSection:
        differing(self.samples, self.sampling)
        return self


class SpellSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("spell")
    mode: Literal["self-play", "rlvr"] = "self-play"  # rlvr: the baseline on data.questions, App. C.4
    train: tuple[SpellRole, ...] = Field(default=("questioner", "responder", "verifier"), strict=False)  # Eq. (10)
    # shares of the tasks; tasks of each family of clusters whose name is not that of a task
    tasks: dict[SpellTask, Weight] = {"qa": 1.0, "math": 1.0, "choice": 1.0}
    families: dict[str, Annotated[tuple[SpellTask, ...], Field(strict=False, min_length=1)]] = {}
    # a step draws clusters until it has enough questions with both correct and wrong answers
    groups: Count = 128  # N, the batch size, section 5.1
    clusters_per_round: Count = 480  # drawn at a time; released code
    max_rounds: Count = 10  # then the step continues with the questions it has; released code: the run ends
    # the questioner
    documents: Count = 5  # m, section 5.1
    history: Whole = 3  # L, section 5.1; 0: without history memory, an ablation of Table 2
    history_documents: Literal["new", "seen"] = (
        "new"  # stored in an entry: C_new (Alg. 1 l.21), or all read; code: seen
    )
    history_accepts: Literal["mixed", "solved"] = "mixed"  # 0 < mean < 1 (Alg. 1 l.20), or also 1; released code
    all_seen: Literal["stay", "reset"] = "stay"  # without unseen documents: add none (released code), or restart
    max_answer_tokens: Count = 20  # per reference answer, App. E; released code: 40
    grounding_filter: bool = True  # False: an ablation of Table 2
    questioner: SpellRoleSection = SpellRoleSection()
    responder: SpellGroupSection = SpellGroupSection()
    # the rule-based reward of Eq. (6)
    rule: Literal["match", "judge"] = "match"  # judge: the external model of [judge] instead, Table 4
    rule_reads: RuleText = "answer"  # where the answer is searched: released code; response: section 4.2 as printed
    # the verifier
    verify: bool = True  # False: only the rule, an ablation of Table 2
    vote: Vote = "majority"  # Eq. (4); single: the first judgment decides, an ablation of Table 2
    consistency_check: bool = True  # trained only where vote and rule agree; False: an ablation of Table 2
    verifier_batch: Literal["judgments", "groups"] = "judgments"  # what is matched to the number of questions
    malformed_judgment: Reward = 0.0  # reward of a judgment without a verdict, Eq. (5); released code: -1
    verifier: SpellGroupSection = SpellGroupSection()
    # the questioner's reward, Eq. (7)
    questioner_reward: QuestionerReward = "gaussian"  # of a success rate between 0 and 1; the others: Fig. 5
    target: float = Field(default=0.5, gt=0, lt=1)  # mu
    width: float = Field(default=0.5 / 3, gt=0, le=10)  # sigma
    ungrounded_reward: Reward = -0.5
    malformed_reward: Reward = -1.0  # 0: without the format penalty, an ablation of Table 2
    exam_prompt_tokens: Count = 16384  # longer exam contexts are truncated in the middle, C.2: 16K, or 100K
    # one update of all roles: Eq. (8), Eq. (10), App. C.3
    loss: LossCard = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")
    questioner_advantage: AdvantageCard = AdvantageCard(advantage="batch-zscore")  # Eq. (9)

    @model_validator(mode="after")
    def _consistent(self) -> SpellSection:
        if not self.train or len(set(self.train)) < len(self.train):
            raise ValueError("train must list at least one role, each once")
        if "verifier" in self.train and not self.verify:
            raise ValueError('verify = false leaves nothing to train the verifier on; remove "verifier" from train')
        if self.mode == "rlvr" and (self.train != ("responder",) or self.verify):
            raise ValueError(
                'mode = "rlvr" has neither questioner nor verifier; set train = ["responder"] and verify = false'
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
    rlvr = card.mode == "rlvr"
    if not rlvr and cfg.data.clusters is None:
        raise ValueError("data.clusters is missing; SPELL needs a file of clusters of documents (docs/data.md)")
    if rlvr and cfg.data.questions is None:
        raise ValueError(
            'data.questions is missing; spell.mode = "rlvr" needs a file of questions with answers and context '
            "(docs/data.md)"
        )
    if cfg.judge is None and card.rule == "judge":
        raise ValueError(
            'spell.rule = "judge" needs an external model, but the card has no [judge] table; add one, or set '
            'spell.rule = "match"'
        )
