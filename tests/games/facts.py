"""The values in the papers and the released code, transcribed by hand; the cards in configs/ are compared with them.

ROWS_… are tables as printed, row by row. The functions below them map each place in a paper (table, section, "released
code") to card keys and the values that the card must have. A value may allow several (`OneOf`, `Between`, `Named`).
"released code": Alibaba-Quark/SSP b4797e1, EdinburghNLP/SCOPE 337e54d, with the defaults of their forks of veRL where
they set nothing. "Oat": the framework that SPICE names, which has no released code; c1a074c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).parents[2]
Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class OneOf:
    """The source allows any of these values."""

    values: tuple[Any, ...]

    def __eq__(self, value: object) -> bool:
        return value in self.values


@dataclass(frozen=True)
class Between:
    """A range, bounds included."""

    low: float
    high: float

    def __eq__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Named:
    """A path or name that contains this word."""

    word: str

    def __eq__(self, value: object) -> bool:
        return isinstance(value, str) and self.word in value


@dataclass(frozen=True)
class PromptEnd:
    """A chat template whose prompts end with this text."""

    text: str

    def __eq__(self, path: object) -> bool:
        template = jinja2.Template((ROOT / str(path)).read_text(encoding="utf-8"))
        asked = [{"role": "user", "content": "question"}]
        return template.render(messages=asked, add_generation_prompt=True, eos_token="").endswith(self.text)


# ----------------------------------------------------------------------------------------------------------------- SSP
ROWS_SSP_4: dict[str, float] = {
    "Global Batch Size": 256,
    "Mini-batch Size": 128,
    "Learning Rate": 1e-6,
    "Learning Rate Warmup Steps": 5,
    "Max Prompt Length": 4096,
    "Max Response Length": 8192,
    "KL Loss Coefficient": 0.01,
    "Validation Temperature": 0.0,
    "Rollout Temperature": 1.0,
    "Proposer Warm-up Steps": -1,  # disabled
    "Proposer Samples (n)": 1,
    "Solver Samples (n)": 5,
    "Noisy RAG Documents": 4,
}
VERL = {  # defaults of both forks
    "optimizer.schedule": "constant",
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.weight_decay": 0.01,
    "optimizer.max_grad_norm": 1.0,
    "model.compute_dtype": "bfloat16",
    "model.param_dtype": "float32",
}
VERL_LOSS = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "kl": "k3-plain", "aggregation": "token-mean"}
SEARCH_R1 = {
    "retrieval.kind": "exact",
    "retrieval.top_k": 3,
    "retrieval.max_tokens": 500,
    "retrieval.encoder.checkpoint": Named("e5-base-v2"),
    "retrieval.encoder.query_prefix": "query: ",
    "retrieval.encoder.passage_prefix": "passage: ",
    "retrieval.encoder.max_tokens": 256,
    "retrieval.encoder.compute_dtype": "float16",
}
WITH_GRADIENT_OF_KL = OneOf(("k1", "k2", "k3"))


def both(game: str, roles: tuple[str, ...], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of settings for several roles, as full keys."""
    return {f"{game}.{role}.{key}": value for role in roles for key, value in table.items()}


def ssp(card: str) -> Facts:
    """Statements about the card of the main experiment."""
    rows, roles = ROWS_SSP_4, ("proposer", "solver")
    mini_batches = rows["Global Batch Size"] // rows["Mini-batch Size"]
    samples = {f"ssp.{role}.samples": rows[f"{role.title()} Samples (n)"] for role in roles}
    role = {
        "max_prompt_tokens": rows["Max Prompt Length"],
        "sampling.temperature": rows["Rollout Temperature"],
        "sampling.max_response_tokens": rows["Max Response Length"],
        "loss.mini_batches": mini_batches,
    }
    verl_loss = both("ssp", roles, {f"loss.{key}": value for key, value in VERL_LOSS.items()})
    return {
        "Table 1": {"model.checkpoint": Named("Qwen2.5-7B-Instruct")},
        "Table 4": {
            "train.batch_size": rows["Global Batch Size"],
            "optimizer.learning_rate": rows["Learning Rate"],
            "optimizer.warmup_steps": rows["Learning Rate Warmup Steps"],
            "rollout.max_length": rows["Max Prompt Length"] + rows["Max Response Length"],
            "evaluate.temperature": rows["Validation Temperature"],
            "evaluate.max_response_tokens": rows["Max Response Length"],
            "ssp.proposer_warmup_steps": max(rows["Proposer Warm-up Steps"], 0),
            "ssp.verify": OneOf(("policy", "judge")),
            "ssp.verify_temperature": rows["Rollout Temperature"],
            "ssp.noise_documents": rows["Noisy RAG Documents"],
            "ssp.fill": "replay-reset",
            "ssp.proposer.loss.advantage": "none",  # REINFORCE
            "ssp.solver.loss.advantage": OneOf(("group-mean", "group-zscore")),  # GRPO
            "ssp.solver.loss.kl_coef": rows["KL Loss Coefficient"],
            **samples,
            **both("ssp", roles, role),
        },
        "section 3": {"ssp.train": "both"},
        "section 3.2": {"ssp.grader": "judge", "ssp.verify": "policy"},
        "section 4.1": {
            "train.steps": Between(150, 200),
            "retrieval.corpus": Named("wiki"),
            "retrieval.encoder.checkpoint": Named("e5"),
            "retrieval.top_k": 3,
            "evaluate.sets.limit": 500,
            "judge.model": "Qwen2.5-32B-Instruct",
        },
        "section 4.4": {"ssp.noise_documents": 4, "ssp.noise_unit": "document"},
        "Algorithm 1": {"ssp.update_order": ["solver", "proposer"]},
        "Eq. (4)": {
            "ssp.solver.loss.advantage": "group-mean",
            "ssp.solver.loss.aggregation": "sequence-mean",
            "ssp.solver.loss.kl": WITH_GRADIENT_OF_KL,
        },
        "Eq. (5)": {
            "ssp.proposer.loss.advantage": "none",
            "ssp.proposer.loss.aggregation": "constant",
            "ssp.proposer.loss.constant_length": 1,
            "ssp.proposer.loss.kl": "none",
        },
        "Eq. (7)": {"ssp.proposer_reward": "one-minus-mean"},
        # "default settings" of veRL for whatever Table 4 does not name
        "A.1": {key: value for key, value in VERL.items() if key.startswith("optimizer.")}
        | both("ssp", roles, {f"loss.{key}": VERL_LOSS[key] for key in ("clip_low", "clip_high", "dual_clip")}),
        "A.2": {"ssp.format": OneOf(("well-formed", "think"))},
        "App. D": {"model.dialect": "xml"},
        "B.1": {"ssp.replay_reset_every": 10},
        "B.2": both("ssp", roles, {"max_turns": 10}),
        "B.3": {"ssp.invalid_reward": 0.0},
        "Search-R1": SEARCH_R1,
        "veRL": {**VERL, **verl_loss},
        "released code": {
            **VERL,
            **verl_loss,
            **both("ssp", roles, {"loss.clip_high": 0.285, "loss.kl_coef": 0.01, "max_turns": 10}),
            **both("ssp", roles, {"sampling.max_tokens": 8192}),  # a turn may use the rest of the response budget
            "evaluate.max_tokens": 8192,
            "model.turns": "raw",
            "mesh.fsdp": -1,
            "mesh.tensor": 1,
            "learner.micro_batch_rows": 1,
            "learner.remat": "full",
            "train.save_every": 5,
            "evaluate.every": 5,
            "judge.temperature": 0.1,
            "judge.max_tokens": 70,
            "ssp.format": "lenient",
            "ssp.min_chars": 10,
            "ssp.max_chars": 1000,
            "ssp.min_words": 10,
            "ssp.min_distinct_searches": 2,
            "ssp.update_order": ["proposer", "solver"],
            "ssp.verify": "judge",
            "ssp.noise_unit": "trajectory",
            "ssp.replay_reset_every": 10,
            "ssp.grader": "exact-match-then-judge",
            "ssp.solver.loss.advantage": "group-zscore",
            "ssp.proposer.loss.advantage": "none",
        },
    }


# --------------------------------------------------------------------------------------------------------------- SCOPE
ROWS_SCOPE_9: dict[str, Any] = {  # "a / b": challenger / solver
    "Learning rate": 1e-6,
    "LR warmup ratio": 0.03,
    "Gradient clip": 1.0,
    "KL coefficient": 1e-3,
    "Steps per iteration (per role)": 20,
    "Iterations": 3,
    "Batch size": (64, 256),
    "Group size (G)": 8,
    "Max prompt length": (1024, 2048),
    "Max response length": 8192,
    "Rollout prompt length": 2048,
    "Max model length": 16384,
    "Rubric weight": 1.0,
    "Format weight": 0.5,
    "Search weight": 0.1,
    "Search reward max turns": 3,
    "Length soft limit": 1024,
    "Length hard limit": 2048,
    "Length penalty floor": 0.05,
    "Difficulty weight": 1.0,
    "Difficulty target": 0.5,
    "Solver rollouts per task (K)": 8,
    "Documents per query": 3,
    "Max tool response length": 500,
    "Rubric generation temperature": 0.0,
    "Rubric generation max tokens": 8192,
    "Min rubrics per task": 3,
    "Grading temperature": 0.6,
    "Grading max tokens": 16384,
}
TYPES = ("long_form_qa", "summarization", "planning", "writing")
MODELS = {  # by card: model, dialect (Table 11), turns (App. E), temperature of evaluation (section 4.1)
    "qwen2.5-7b": ("Qwen2.5-7B-Instruct", "xml", "chat", 0.0),
    "qwen3-8b": ("Qwen3-8B", "hermes", "chat-trimmed", 1.0),
    "olmo3-7b": ("Olmo-3-7B-Instruct", "function", "chat", 0.0),
}


def scope(card: str) -> Facts:
    """Statements about the card of one of the paper's three models."""
    rows, roles = ROWS_SCOPE_9, ("challenger", "solver")
    model, dialect, turns, temperature = MODELS[card]
    updates = rows["Iterations"] * rows["Steps per iteration (per role)"]
    loss = {f"loss.{key}": value for key, value in VERL_LOSS.items()}
    stages = ("estimate", "creation", "challenger.sampling", "solver.sampling")
    return {
        "Table 9": {
            "optimizer.learning_rate": rows["Learning rate"],
            "optimizer.warmup_steps": int(rows["LR warmup ratio"] * updates),
            "optimizer.max_grad_norm": rows["Gradient clip"],
            "rollout.max_length": rows["Max model length"],
            "retrieval.top_k": rows["Documents per query"],
            "retrieval.max_tokens": rows["Max tool response length"],
            "scope.iterations": rows["Iterations"],
            "scope.steps_per_iteration": rows["Steps per iteration (per role)"],
            "scope.challenger_batch": rows["Batch size"][0],
            "scope.solver_batch": rows["Batch size"][1],
            "scope.n_train": rows["Solver rollouts per task (K)"],
            "scope.min_rubrics": rows["Min rubrics per task"],
            "scope.rubric_writer.temperature": rows["Rubric generation temperature"],
            "scope.rubric_writer.max_tokens": rows["Rubric generation max tokens"],
            "scope.grader.temperature": rows["Grading temperature"],
            "scope.grader.max_tokens": rows["Grading max tokens"],
            "scope.challenger_reward.format": rows["Format weight"],
            "scope.challenger_reward.difficulty": rows["Difficulty weight"],
            "scope.challenger_reward.target": rows["Difficulty target"],
            "scope.solver_reward.rubric": rows["Rubric weight"],
            "scope.solver_reward.format": rows["Format weight"],
            "scope.solver_reward.search": rows["Search weight"],
            "scope.solver_reward.searches": rows["Search reward max turns"],
            "scope.solver_reward.soft_limit": rows["Length soft limit"],
            "scope.solver_reward.hard_limit": rows["Length hard limit"],
            "scope.solver_reward.floor": rows["Length penalty floor"],
            **{f"scope.{stage}.max_response_tokens": rows["Max response length"] for stage in stages},
            **{f"scope.{role}.max_prompt_tokens": rows["Max prompt length"][place] for place, role in enumerate(roles)},
            # the batch is "per gradient update"
            **both("scope", roles, {"samples": rows["Group size (G)"], "loss.mini_batches": 1}),
            **both("scope", roles, {"loss.kl_coef": rows["KL coefficient"]}),
        },
        "Table 11": {"model.dialect": dialect},
        "section 3": {"scope.mode": "self-play"},
        "section 3.1": {
            "scope.window": [0.2, 0.8],
            "scope.quality_gates": True,
            "scope.gates_first": True,
            "scope.missing_answer": "zero",  # ḡ is the mean of the N grades
        },
        "section 4.1": {
            "model.checkpoint": Named(model),
            "data.documents": Named("wiki"),
            "evaluate.temperature": temperature,
            "evaluate.max_tokens": 16384,
            "evaluate.max_response_tokens": 16384,
            "evaluate.max_turns": 5 + 1,  # searches and the answer
            "evaluate.max_length": 24576,
            **{f"scope.rubric_weights.{name}": 1.0 for name in ("critical", "important", "bonus")},
        },
        "Algorithm 1": {"scope.gates_first": True},
        "Eq. (2)": both("scope", roles, {"loss.advantage": "group-zscore"}),
        "Eq. (3)": {
            **both("scope", roles, {"loss.aggregation": "sequence-mean", "loss.kl": WITH_GRADIENT_OF_KL}),
            "scope.solver.loss.clip_high": 0.2,  # the same ε on both sides
        },
        "Eq. (7)": {"scope.solver_reward.length_penalty": True, "scope.cut_answer": False},
        "App. E": {
            "mesh.fsdp": -1,
            "model.turns": turns,
            "learner.remat": "full",
            "train.offload": True,
        },
        "F.1": {"scope.challenger_reward.think": "paired"},
        "F.2": {"scope.solver_reward.think": "paired", "scope.solver_reward.searches": 3},
        "App. G": {
            "scope.search_turns": [4, 3, 2],
            "scope.n_train": 8,
            "scope.n_filter": 4,
            "scope.window": [0.2, 0.8],
            "scope.target_tasks": 5120,
            "scope.generation_batch": Between(200, 500),
            "scope.max_rubrics": 5,
        },
        "veRL": {**VERL, **both("scope", roles, loss)},
        "released code": {
            **VERL,
            **both("scope", roles, loss | {"sampling.temperature": 1.0}),
            **{f"scope.{stage}.max_tokens": 8192 for stage in stages},  # the rest of the response budget
            "scope.challenger.max_turns": 10,
            "scope.solver.max_turns": 5,
            "scope.solver.loss.clip_high": 0.28,
            "scope.document_tokens": 256,
            "scope.dynamic_turns": True,
            "scope.solver_stops_at_search": card == "olmo3-7b",  # its script stops at either string
            "scope.generation_batch": 500,
            "scope.max_batches": 20 * 2000 // 500,
            "scope.gates_first": False,
            "scope.gates.temperature": 0.0,
            "scope.gates.max_tokens": 1024 if card == "qwen3-8b" else 256,
            "scope.grader.temperature": OneOf((0.0, 0.6)),  # in the challenger's stage, in the solver's
            "scope.max_rubrics": 10,
            "scope.ungraded": "zero",
            "scope.min_graded": 0.5,
            "scope.missing_answer": "exclude",
            "scope.cut_answer": True,
            "scope.estimate.temperature": 0.7,
            "scope.estimate.top_p": 0.9,
            "scope.creation.temperature": 1.0,
            "scope.challenger_reward.think": "opening",
            "scope.solver_reward.think": "starts",
            **{f"scope.task_types.{kind}": 1.0 for kind in TYPES},
            **{f"scope.rubric_weights.{name}": 1.0 for name in ("critical", "important", "bonus")},
        },
    }


# --------------------------------------------------------------------------------------------------------------- SPICE
ROWS_SPICE_5: dict[str, Any] = {  # the methods in a figure, SPICE first
    "Corpus documents": (20000, 20000),
    "Challenger sampling": (8, 4, 1),
    "Reasoner sampling": (8, 8, 5, 1),
    "Temperature": (1.0, 1.0, 1.0, 1.0),
    "Invalid penalty": (-0.1, -1, -0.5, -1),
    "Training iterations": (640, 640, 5, 640),
}
BASES = {
    "qwen3-4b": "Qwen3-4B-Base",
    "qwen3-8b": "Qwen3-8B-Base",
    "octothinker-3b": "OctoThinker-3B-Hybrid-Base",
    "octothinker-8b": "OctoThinker-8B-Hybrid-Base",
}


def spice(card: str) -> Facts:
    """Statements about the card of one of the paper's four models. Its code is not published; it is built on Oat."""
    rows, roles = {name: values[0] for name, values in ROWS_SPICE_5.items()}, ("challenger", "reasoner")
    documents, trajectories = 128, 128  # per batch, per gradient update
    batch = documents * (rows["Challenger sampling"] + rows["Reasoner sampling"])
    conversation = {"model.chat_template": Named("octothinker")} if card.startswith("octothinker") else {}
    return {
        "Table 5": {
            "data.limit": rows["Corpus documents"],
            "train.steps": rows["Training iterations"],
            "spice.train": "both",
            "spice.challenger.samples": rows["Challenger sampling"],
            "spice.reasoner.samples": rows["Reasoner sampling"],
            "spice.challenger_reward": "variance",
            "spice.invalid_reward": rows["Invalid penalty"],
            "spice.loss.aggregation": "constant",  # DrGRPO
            **both("spice", roles, {"sampling.temperature": rows["Temperature"]}),
        },
        "section 2": {"spice.challenger.model": "actor"},
        "section 2.2": {
            "spice.corpus": True,
            "spice.formats": "both",
            "spice.answer_types": ["integer", "expression", "string"],
        },
        "section 2.5": {"spice.reasoner_rollouts": "reuse"},
        "section 3.1": {
            "model.checkpoint": Named(BASES[card]),
            "data.documents": Named("documents"),
            "train.batch_size": documents,
            "train.steps": 640,
            "spice.document_tokens": 5992,
            "spice.max_attempts": 1024,
            "spice.valid_wanted": 1,
            "spice.invalid_reward": -0.1,
            **both("spice", roles, {"samples": 8, "sampling.temperature": 1.0}),
        },
        "Algorithm 1": {"spice.reasoner_rollouts": "fresh", "spice.loss.mini_batches": 1},
        "Eq. (1)": {"spice.challenger_reward": "variance", "spice.reward_width": 0.01},
        "Eq. (3)": {"spice.loss.advantage": "group-mean"},
        "Eq. (4)": {"spice.loss.advantage": "group-mean"},
        "Eq. (5)": {"spice.reward_width": 0.01},
        "App. 7": {"evaluate.temperature": 0.0},
        "App. 8": {
            "optimizer.learning_rate": 1e-6,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 0,
            "learner.remat": "full",
            "mesh.fsdp": -1,
            "spice.loss.kl": "none",
            "spice.loss.kl_coef": 0.0,
            "spice.loss.mini_batches": batch // trajectories,
        },
        "App. 11": {"spice.max_answer_words": 3, **conversation},
        "Oat": {
            "optimizer.beta1": 0.9,
            "optimizer.beta2": 0.95,
            "optimizer.weight_decay": 0.0,
            "optimizer.max_grad_norm": 1.0,
            "spice.loss.clip_low": 0.2,
            "spice.loss.clip_high": 0.2,
            "spice.loss.dual_clip": 0.0,
            "spice.loss.rollout_cap": 2.0,
            "spice.math_seconds": 1.0,
        },
    }


# --------------------------------------------------------------------------------------------------------------- SPELL
MODELS_SPELL_6 = {  # Table 6, by card
    "qwen2.5-7b": "Qwen2.5-7B",
    "qwen2.5-14b": "Qwen2.5-14B",
    "qwen2.5-32b": "Qwen2.5-32B",
    "qwen2.5-7b-instruct": "Qwen2.5-7B-Instruct",
    "qwen2.5-14b-instruct": "Qwen2.5-14B-Instruct",
    "qwen2.5-32b-instruct": "Qwen2.5-32B-Instruct",
    "qwen3-30b-a3b-instruct": "Qwen3-30B-A3B-Instruct-2507",
    "llama3.1-8b-instruct": "Meta-Llama-3.1-8B-Instruct",
    "r1-distill-llama-8b": "DeepSeek-R1-Distill-Llama-8B",
    "r1-distill-qwen-14b": "DeepSeek-R1-Distill-Qwen-14B",
    "qwen3-4b-thinking": "Qwen3-4B-Thinking-2507",
    "qwen3-30b-a3b-thinking": "Qwen3-30B-A3B-Thinking-2507",
}
SPELL_ROLES = ("questioner", "responder", "verifier")


def spell(card: str) -> Facts:
    """The stated value of each key of a SPELL card, by place; "released code" is Tongyi-Zhiwen/Qwen-Doc 12489b0."""
    output = 20480 if "thinking" in card or card.startswith("r1-") else 4096  # section 5.1: 4K, or 20K
    sampling = {"temperature": 0.7, "top_p": 0.95, "max_tokens": output, "max_response_tokens": output}
    return {
        "section 4.1": {"spell.grounding_filter": True, "spell.verify": True},
        "section 4.2": {
            "spell.rule": "match",
            "spell.rule_reads": "response",  # our cards: the released code's
            "spell.containment": "plain",
            "spell.target": 0.5,
            "spell.width": 0.5 / 3,
        },
        "section 4.3": {"spell.consistency_check": True},
        "section 5.1": {
            **both("spell", SPELL_ROLES, {"max_prompt_tokens": 16384}),
            **both("spell", SPELL_ROLES, {f"sampling.{key}": value for key, value in sampling.items()}),
            **both("spell", SPELL_ROLES[1:], {"samples": 8}),
            "spell.groups": 128,
            "spell.documents": 5,
            "spell.history": 3,
            "spell.loss.mini_batches": 1,
            "rollout.max_length": 16384 + output,
            "optimizer.learning_rate": 2e-6,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 0,
        },
        "Algorithm 1": {"spell.history_documents": "new", "spell.history_accepts": "mixed"},
        "Eq. (4)": {"spell.vote": "majority"},
        "Eq. (5)": {"spell.malformed_judgment": 0.0},
        "Eq. (7)": {"spell.ungrounded_reward": -0.5, "spell.malformed_reward": -1.0},
        "Eq. (8)": {"spell.loss.advantage": "group-zscore"},
        "Eq. (9)": {"spell.questioner_advantage.advantage": "batch-zscore"},
        "C.1": {
            "data.clusters": Named("clusters"),
            "clusters.benchmarks": [f"{name}-long" for name in ("frames", "hotpotqa", "2wikimultihopqa", "musique")]
            + ["docmath", "longbench-v2"],
            "clusters.sources.split": "en",
            "clusters.sources.families": ["qa", "choice"],
            "clusters.min_characters": 100,
            "clusters.max_characters": 32_768,
            "clusters.min_quality": 1.0,
            "clusters.similarity": 0.8,
            "clusters.permutations": 128,
            "clusters.documents": 20,
            "clusters.per_family": 2150,
            "clusters.encoder.checkpoint": Named("Qwen3-Embedding-8B"),
            **{f"spell.tasks.{task}": 1.0 for task in ("qa", "math", "choice")},
        },
        "C.2": {
            **{f"evaluate.{key}": value for key, value in sampling.items()},
            "evaluate.sets.samples": 8,
            "evaluate.sets.measures": OneOf((["choice"], ["accuracy", "numeric"])),
            "evaluate.judge.model": "openai/gpt-oss-120b",
            "spell.exam_prompt_tokens": OneOf((16384, 100_000)),
        },
        "C.3": {"spell.loss.aggregation": "token-mean", "spell.loss.kl": "none", "spell.loss.mini_batches": 1},
        "D.1": {"train.steps": Between(60, 75)},  # 8 hours at 7 minutes per step
        "App. E": {"spell.max_answer_tokens": 20},
        "Table 6": {
            "model.checkpoint": Named(MODELS_SPELL_6[card]),
            "evaluate.judge.model": "openai/gpt-oss-120b",
            "clusters.sources.path": "openbmb/Ultra-FineWeb",
            "clusters.encoder.checkpoint": Named("Qwen3-Embedding-8B"),
        },
        "veRL": VERL,
        "released code": {
            "optimizer.weight_decay": 0.01,
            "spell.clusters_per_round": 480,
            "spell.max_rounds": 10,
            "spell.all_seen": "stay",
            "spell.history_documents": "seen",
            "spell.history_accepts": "solved",
            "spell.max_answer_tokens": 40,
            "spell.rule_reads": "answer",
            "spell.containment": "plain",
            "spell.verifier_batch": "judgments",
            "spell.malformed_judgment": -1.0,
            "spell.loss.advantage_ddof": 1,
            "spell.loss.aggregation": "token-mean",
            "spell.loss.clip_low": 0.2,
            "spell.loss.clip_high": 0.2,
            "spell.questioner_advantage.advantage": "group-zscore",
            "spell.questioner_advantage.advantage_ddof": 1,
        },
    }


# --------------------------------------------------------------------------------------------------------------- SCORE
ROWS_SCORE_2: dict[str, float] = {  # a row of Table 2 may set several keys
    "learning rate": 1e-6,
    "warmup steps": 5,
    "KL coefficient": 0.05,
    "training batch size": 64,
    "PPO mini-batch size": 32,
    "PPO micro-batch size per GPU": 4,
    "GPUs": 4,
    "solver rollout number": 8,
    "maximum input length": 8192,
    "maximum response length": 4096,
    "evaluator maximum generation length": 2048,
    "maximum assistant turns": 10,
    "EMA baseline decay": 0.7,
    "evaluator update frequency": 1,
    "evaluator temperature": 0.8,
    "harness refresh frequency": 5,
}
MODELS_SCORE = {"qwen2.5-7b": ("Qwen2.5-7B-Instruct", 255), "llama3.1-8b": ("Llama-3.1-8B-Instruct", 2380)}
SCORE_ROLES = ("solver", "evaluator")


def _lengths_score(rows: dict[str, Any]) -> dict[str, Any]:
    """The lengths of a generation, and of what may follow a prompt: the results that its input holds, and one more."""
    read, rubric = rows["maximum input length"], rows["evaluator maximum generation length"]
    return {
        "score.solver.sampling.max_tokens": rows["maximum response length"],
        "score.solver.sampling.max_response_tokens": read + rows["maximum response length"],
        "score.evaluator.sampling.max_tokens": rubric,
        "score.evaluator.sampling.max_response_tokens": rows["maximum response length"],
        "score.evaluator.assessment.max_tokens": rubric,
        "score.evaluator.assessment.max_response_tokens": read + rubric,
    }


def score(card: str) -> Facts:
    """The stated value of each key of a SCORE card, by place; there is no released code."""
    rows, (model, queries) = ROWS_SCORE_2, MODELS_SCORE[card]
    verl_loss = {f"score.{role}.loss.{key}": value for role in SCORE_ROLES for key, value in VERL_LOSS.items()}
    return {
        "section 3": {"score.malformed": "leave-out"},
        "section 3.4": {"score.rubric_scope": "query"},
        "section 3.5": {"score.policies": "shared", "score.evaluator.loss.advantage": "ema"},
        "section 5.1": {
            "model.checkpoint": Named(model),
            "data.queries": Named("queries"),
            "score.evaluator.loss.ema_decay": rows["EMA baseline decay"],
            "score.harness.every": rows["harness refresh frequency"],
        },
        "Algorithm 1": {
            "score.train": ["solver", "evaluator"],
            "score.rubric": "sampled",
            "score.rubric_scope": "step",
            "score.solver.loss.advantage": "group-zscore",
            "score.evaluator.loss.ema_start": 0.0,
        },
        "App. E": {"score.evaluator.loss.aggregation": "constant", "score.evaluator.loss.constant_length": 1},
        "App. H": {"model.dialect": "observation"},
        "Table 2": {
            "optimizer.learning_rate": rows["learning rate"],
            "optimizer.warmup_steps": rows["warmup steps"],
            "data.limit": queries,
            "train.batch_size": rows["training batch size"],
            "train.steps": Between(50, 120),
            "train.offload": True,
            "mesh.fsdp": -1,
            "learner.micro_batch_rows": rows["PPO micro-batch size per GPU"] * rows["GPUs"],
            "learner.remat": "full",
            "rollout.max_length": rows["maximum input length"] + rows["maximum response length"],
            "score.update_every": rows["evaluator update frequency"],
            "score.harness.every": rows["harness refresh frequency"],
            "score.solver.samples": rows["solver rollout number"],
            "score.solver.loss.mini_batches": rows["training batch size"] // rows["PPO mini-batch size"],
            "score.evaluator.loss.ema_decay": rows["EMA baseline decay"],
            "score.evaluator.sampling.temperature": rows["evaluator temperature"],
            **_lengths_score(rows),
            **both(
                "score",
                SCORE_ROLES,
                {
                    "max_turns": rows["maximum assistant turns"],
                    "max_prompt_tokens": rows["maximum input length"],
                    "loss.kl": OneOf(("k3", "k3-plain")),
                    "loss.kl_coef": rows["KL coefficient"],
                },
            ),
        },
        "veRL": {**VERL, **verl_loss},
    }


# -------------------------------------------------------------------------------------------------------------- R-Zero
ROWS_R_ZERO: dict[str, float] = {  # App. A, by public summaries of the paper; its text was not at hand
    "Learning Rate": 1e-6,
    "Weight Decay": 1e-2,
    "KL Penalty Coefficient": 1e-2,
    "Global Batch Size": 128,
    "Max Steps": 15,
    "Number of Rollouts": 5,
    "Challenger Max Steps": 5,
    "Challenger Number of Rollouts": 4,
    "Rollout Temperature": 1.0,
    "Rollout Top-p": 0.99,
}


def r_zero(card: str) -> Facts:
    """Statements about the card of a model; "released code" is Chengsong-Huang/R-Zero 5699329, an EasyR1."""
    rows, roles, prompts = ROWS_R_ZERO, ("challenger", "solver"), 512
    lengths = {"max_tokens": 4096, "max_response_tokens": 4096}
    loss = {"advantage": "group-zscore", "clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0}
    loss |= {"kl": "k3-plain", "kl_bound": 10.0, "kl_coef": 0.01}
    sampled = {"temperature": rows["Rollout Temperature"], "top_p": rows["Rollout Top-p"]}
    return {
        "Table 1": {"model.checkpoint": Named(BASES[card]), "r_zero.iterations": 3},
        "App. A": {
            "model.compute_dtype": "bfloat16",
            "optimizer.learning_rate": rows["Learning Rate"],
            "optimizer.weight_decay": rows["Weight Decay"],
            "r_zero.challenger_steps": rows["Challenger Max Steps"],
            "r_zero.challenger.samples": rows["Challenger Number of Rollouts"],
            "r_zero.solver_steps": rows["Max Steps"],
            "r_zero.solver.samples": rows["Number of Rollouts"],
            "r_zero.solver.loss.kl_coef": rows["KL Penalty Coefficient"],
            **both("r_zero", roles, {f"sampling.{key}": value for key, value in sampled.items()}),
            **both("r_zero", roles, {"loss.mini_batches": prompts // int(rows["Global Batch Size"])}),
        },
        "section 3.2": {
            "r_zero.votes": 10,
            "r_zero.uncertainty_weight": 1.0,
            "r_zero.repetition_weight": 1.0,
            "r_zero.repetition_distance": 0.5,
            "r_zero.floor": True,
            "r_zero.invalid_reward": 0.0,
        },
        "section 3.3": {"r_zero.pool": 8000, "r_zero.pool_votes": 10, "r_zero.window": [0.25, 0.75]},
        "section 3.4": {"r_zero.format_weight": 0.0},
        "veRL": VERL,
        "released code": {
            **{key: value for key, value in VERL.items() if key.startswith("optimizer.")},
            **both("r_zero", roles, {f"loss.{key}": value for key, value in loss.items()}),
            **both("r_zero", roles, {f"sampling.{key}": value for key, value in lengths.items()}),
            **both("r_zero", roles, {"max_prompt_tokens": 2048}),
            **{f"r_zero.pool_sampling.{key}": v for key, v in {"temperature": 1.0, "top_p": 0.95, **lengths}.items()},
            "r_zero.vote_sampling.temperature": 1.0,
            "r_zero.vote_sampling.top_p": 1.0,
            "r_zero.vote_sampling.top_k": 40,
            **{f"r_zero.vote_sampling.{key}": value for key, value in lengths.items()},
            "evaluate.temperature": 0.0,
            **{f"evaluate.{key}": value for key, value in lengths.items()},
            "mesh.fsdp": -1,
            "rollout.max_length": 2048 + 4096,
            "learner.remat": "full",
            "optimizer.warmup_steps": 0,
            "train.save_every": 5,
            "r_zero.iterations": 5,
            "r_zero.reference": "phase",
            "r_zero.challenger_batch": prompts,
            "r_zero.solver_batch": prompts,
            "r_zero.window": [0.3, 0.8],
            "r_zero.pool_votes": 9,
            "r_zero.unanswered_agree": True,
            "r_zero.uncertainty_weight": 0.5,
            "r_zero.floor": False,
            "r_zero.invalid_reward": -1.0,
            "r_zero.format_weight": 0.1,
            "r_zero.challenger.loss.aggregation": "token-mean",  # over the two rows of a device
            "r_zero.solver.loss.aggregation": "sequence-mean",  # one row each
            "r_zero.challenger.loss.mini_batches": prompts // 16,
        },
    }


# --------------------------------------------------------------------------------------------------------------- SPIRAL
def spiral(card: str) -> Facts:
    """Statements about the cards: spiral-rl/spiral a02d0ed, run.sh and train_spiral.py, which are for one model:
    51,200 turns, 128 in a step. What they leave to their framework is Oat's."""
    model = {"model.checkpoint": Named("Qwen3-4B-Base")} if card == "qwen3-4b" else {}
    own = {"games": {"kuhn_poker": 1}} if card == "qwen3-4b" else {}
    return {
        "released code": {
            **model,
            "model.turns": "chat",
            "rollout.max_length": 12800,
            "learner.micro_batch_rows": 8,
            "learner.remat": "full",
            "optimizer.learning_rate": 1e-6,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 0,
            "train.steps": 51_200 // 128,
            "evaluate.every": 16,
            "evaluate.temperature": 0.6,
            "evaluate.top_p": 0.95,
            "evaluate.max_tokens": 4096,
            **{
                f"spiral.{key}": value
                for key, value in {
                    **own,
                    "turns": 8 * 16,
                    "passes": 2,
                    "policies": ["actor"],
                    "opponent": "self",
                    "invalid_reward": [-1.5, 0.5],
                    "max_turns": 50,
                    "kuhn_hands": 5,
                    "kuhn_by_chips": False,
                    "negotiation": [10, 10],
                    "sampling.temperature": 1.0,
                    "sampling.top_p": 1.0,
                    "sampling.max_tokens": 4096,
                    "loss.advantage": "ema",
                    "loss.ema_decay": 0.95,
                    "loss.ema_start": 0.0,
                    "loss.aggregation": "constant",
                    "loss.constant_length": 4096,
                    "loss.kl": "none",
                    "loss.mini_batches": 1,
                }.items()
            },
        },
        "section 4": {"model.checkpoint": Named("DeepSeek-R1-Distill-Qwen-7B")},
        "Oat": {
            "mesh.fsdp": -1,
            "optimizer.beta1": 0.9,
            "optimizer.beta2": 0.95,
            "optimizer.weight_decay": 0.0,
            "optimizer.max_grad_norm": 1.0,
            "spiral.loss.clip_low": 0.2,
            "spiral.loss.clip_high": 0.2,
            "spiral.loss.dual_clip": 0.0,
        },
    }


# ------------------------------------------------------------------------------------------------------------- Dr. Zero
def dr_zero(card: str) -> Facts:
    """Statements about the cards: facebookresearch/drzero 0591d53, whose scripts are for the smaller model. Its 169,615
    passages are shown once, 256 in a step."""
    roles = ("proposer", "solver")
    rollout = {"max_turns": 5, "sampling.temperature": 1.0, "sampling.top_p": 1.0}
    lengths = {"sampling.max_tokens": 2560, "sampling.max_response_tokens": 2560}
    loss = {"advantage": "group-zscore", "advantage_ddof": 1, "advantage_eps": 1e-6, "kl": "none", "mini_batches": 1}
    model = {"model.checkpoint": Named("Qwen2.5-3B-Instruct")} if card == "qwen2.5-3b" else {}
    return {
        "Search-R1": SEARCH_R1,
        "veRL": {
            **VERL,
            "evaluate.temperature": 0.0,
            **both("dr_zero", roles, {f"loss.{key}": value for key, value in VERL_LOSS.items() if key != "kl"}),
        },
        "released code": {
            **model,
            "model.dialect": "hermes",
            "model.turns": "chat",
            "mesh.fsdp": -1,
            "mesh.tensor": 1,
            "retrieval.corpus": Named("wiki-18"),
            "retrieval.kind": "exact",
            "retrieval.top_k": 3,
            "retrieval.encoder.checkpoint": Named("e5-base-v2"),
            "rollout.max_length": 1536 + 2560,
            "learner.micro_batch_rows": 2 * 8,
            "learner.remat": "full",
            "optimizer.learning_rate": 1e-6,
            "optimizer.warmup_steps": int(0.03 * (169_615 // 256)),
            "optimizer.max_grad_norm": 0.1,
            "data.documents": Named("wiki-18"),
            "train.batch_size": 256,
            "train.offload": True,
            "train.save_every": 25,
            "evaluate.max_tokens": 2560,
            "evaluate.max_response_tokens": 2560,
            "dr_zero.iterations": 3,
            "dr_zero.steps": 50,
            "dr_zero.partition": 169_615 // 5,
            "dr_zero.samples": 5,
            "dr_zero.question_words": 50,
            "dr_zero.document_tokens": 256,
            "dr_zero.hops": [4, 3, 2, 1],
            "dr_zero.attempts": 5,
            "dr_zero.format": 0.5,
            "dr_zero.difficulty": 1.0,
            "dr_zero.proposer.samples": 1,
            "dr_zero.solver.samples": 5,
            "dr_zero.proposer.max_prompt_tokens": 1536,
            "dr_zero.solver.max_prompt_tokens": 512,
            **both("dr_zero", roles, {**rollout, **lengths, **{f"loss.{key}": value for key, value in loss.items()}}),
        },
    }


# ------------------------------------------------------------------------------------------------------- Absolute Zero
# "released code": LeapLabTHU/Absolute-Zero-Reasoner, branch `paper`, 41ed983: scripts/selfplay, configs and its veRL.
SCRIPTS_ABSOLUTE_ZERO = {  # by card: model.path, train_batch_size, seed_batch_factor, reject_multiple_functions
    "qwen2.5-3b-coder": ("Qwen2.5-Coder-3B", 64, 4, True),
    "qwen2.5-7b": ("Qwen2.5-7B", 64, 4, True),
    "qwen2.5-7b-coder": ("Qwen2.5-Coder-7B", 64, 4, True),
    "qwen2.5-14b": ("Qwen2.5-14B", 64, 4, True),
    "qwen2.5-14b-coder": ("Qwen2.5-Coder-14B", 64, 4, True),
    "llama3.1-8b": ("Llama-3.1-8B", 64, 1, False),
}


def absolute_zero(card: str) -> Facts:
    """Statements about a card of Absolute Zero; every script was compared with that of Qwen2.5-7B, line by line."""
    model, batch, factor, single = SCRIPTS_ABSOLUTE_ZERO[card]
    prompt, response = 6144, 8096
    tasks = ["deduction", "abduction", "induction"]
    reported = RESULTS[f"absolute_zero/{card}"]
    return {
        "README": {"model.checkpoint": Named(model)} if reported else {},
        "paper as quoted": {
            "absolute_zero.extreme_reward": 0.0,
            "absolute_zero.loss.advantage": "batch-zscore",
            "absolute_zero.solve": "updated",
            "absolute_zero.train": "both",
            "absolute_zero.tasks": tasks,
        },
        "released code": {
            "model.checkpoint": Named(model),
            "model.chat_template": PromptEnd("Assistant: <think>"),
            "mesh.fsdp": -1,
            "rollout.max_length": prompt + response,
            "learner.remat": "full",
            "optimizer.learning_rate": 1e-6,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 0,
            "optimizer.max_grad_norm": 1.0,
            "train.batch_size": batch,
            "train.save_every": 10,
            "sandbox.seconds": 10.0,
            "absolute_zero.tasks": tasks,
            "absolute_zero.train": "both",
            "absolute_zero.references": 6,
            "absolute_zero.inputs": 10,
            "absolute_zero.estimates": 8,
            "absolute_zero.seeds": factor * batch,
            "absolute_zero.several_functions": not single,
            "absolute_zero.buffer": 16384,
            "absolute_zero.solve": "earlier",
            "absolute_zero.extreme_reward": -0.5,
            "absolute_zero.max_prompt_tokens": prompt,
            "absolute_zero.sampling.temperature": 1.0,
            "absolute_zero.sampling.top_p": 1.0,
            "absolute_zero.sampling.max_tokens": response,
            "absolute_zero.sampling.max_response_tokens": response,
            "absolute_zero.loss.advantage": "token-whiten",
            "absolute_zero.loss.aggregation": "token-mean",
            "absolute_zero.loss.kl": "none",
            "absolute_zero.loss.clip_low": 0.2,
            "absolute_zero.loss.clip_high": 0.2,
            "absolute_zero.loss.dual_clip": 0.0,
            "absolute_zero.loss.entropy_coef": 0.001,
            "absolute_zero.loss.mini_batches": 6 * batch // 128,
        },
        "veRL": VERL,
    }


# Averages before and after, by card and table (SSP and SPICE Table 1; SCOPE Tables 2 and 3; SPELL Table 1, at 16K
# and 100K).
RESULTS: dict[str, dict[str, tuple[Any, Any]]] = {
    "absolute_zero/qwen2.5-3b-coder": {"README": ("35.0", "40.7")},
    "absolute_zero/qwen2.5-7b": {"README": (39.8, 46.8)},
    "absolute_zero/qwen2.5-7b-coder": {"README": (40.2, 50.4)},
    "absolute_zero/qwen2.5-14b": {},  # a script without figures
    "absolute_zero/qwen2.5-14b-coder": {"README": (40.1, 53.3)},
    "absolute_zero/llama3.1-8b": {"README": ("16.0", 19.2)},
    "spiral/qwen3-4b": {},  # the figures are in the paper alone
    "spiral/r1-distill-qwen-7b": {},
    "dr_zero/qwen2.5-3b": {},  # the figures are in the paper alone
    "dr_zero/qwen2.5-7b": {},
    "ssp/qwen2.5-7b": {"Table 1": (41.5, 49.5)},
    "scope/qwen2.5-7b": {"Table 2": (24.4, 34.8), "Table 3": (45.9, 59.7)},
    "scope/qwen3-8b": {"Table 2": (37.7, 43.1), "Table 3": (54.0, 61.8)},
    "scope/olmo3-7b": {"Table 2": (30.7, 38.5), "Table 3": (40.0, 49.2)},
    "spice/qwen3-4b": {"Table 1": (35.8, 44.9)},
    "spice/qwen3-8b": {"Table 1": (43.0, 48.7)},
    "spice/octothinker-3b": {"Table 1": (14.7, 25.2)},
    "spice/octothinker-8b": {"Table 1": (20.5, 32.4)},
    "r_zero/qwen3-4b": {"Table 1": (42.58, 49.07)},
    "r_zero/qwen3-8b": {"Table 1": (49.18, 54.69)},
    "r_zero/octothinker-3b": {"Table 1": (26.64, 29.32)},
    "r_zero/octothinker-8b": {"Table 1": (32.11, 38.52)},
    "score/qwen2.5-7b": {"Table 1": ("31.92", "34.43")},
    "score/llama3.1-8b": {"Table 1": ("27.00", "30.07")},
    **{
        f"spell/{card}": {"Table 1": short, "100K": long}
        for card, short, long in (
            ("qwen2.5-7b", (26.7, 40.6), (23.6, 39.8)),
            ("qwen2.5-14b", (37.3, 51.7), (36.1, 51.1)),
            ("qwen2.5-32b", (43.0, 52.1), (40.4, 52.4)),
            ("qwen2.5-7b-instruct", (38.2, 47.2), (38.4, 46.5)),
            ("qwen2.5-14b-instruct", (50.8, 57.8), (52.5, 59.7)),
            ("qwen2.5-32b-instruct", (51.8, 59.5), (52.5, 60.1)),
            ("qwen3-30b-a3b-instruct", (56.3, 60.7), (58.8, 63.0)),
            ("llama3.1-8b-instruct", (40.1, 44.5), (40.7, 44.4)),
            ("r1-distill-llama-8b", (46.8, 50.2), (47.5, 50.7)),
            ("r1-distill-qwen-14b", (56.4, 59.8), (56.7, 59.4)),
            ("qwen3-4b-thinking", (54.5, 56.7), (58.1, 60.2)),
            ("qwen3-30b-a3b-thinking", (60.7, 62.7), (63.6, 65.9)),
        )
    },
}
