"""`check`, `plan` and `train` refuse the same cards with the same sentence: a table of bad cards, one for each rule."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import Config
from scope_jax.config.base import prompts_of
from scope_jax.errors import UserError, sentence
from scope_jax.games import GAMES, load_card
from scope_jax.models.files.seal import seal
from scope_jax.plan.command import plan
from scope_jax.plan.hardware import hardware
from scope_jax.run import rules
from scope_jax.run.assemble import assemble
from scope_jax.run.origin import with_origin

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "assets" / "atlas"
BASE = ATLAS / "ssp" / "base"
NOWHERE = "http://127.0.0.1:9"
JUDGE = (f'judge.url="{NOWHERE}"', 'judge.model="m"', 'ssp.grader="judge"', f'ssp.prompts="{prompts_of("ssp")}"')

OWN = """
from dataclasses import replace
from scope_jax.games import ssp
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.step import Played
from scope_jax.play.tool_calls import SEARCH, Tool
from scope_jax.play.tools import single_turn
from scope_jax.text.messages import Messages

def play(step):
    agent = Agent("actor", single_turn(1.0, 8), tools=("search",), max_turns=2)
    step.tools.play("asker", [Rollout("a", Messages("?"))], agent)
    return Played([])

def later(*tools, **more):
    agent = Agent("actor", single_turn(1.0, 8), tools=tools, max_turns=2, **more)
    return lambda cfg: (*ssp.GAME.roles(cfg), Role("later", agent))

def judged(step):
    step.tools.judge(["?"], by="critic")

GAME = replace(ssp.GAME, name="own", CHANGE)
"""

# Of each game: what its options and its check refuse when the card is read.
READ = [
    ("ssp", ["data.max_searches=99"], "which with the question takes 100 turns"),
    ("ssp", ['ssp.grader="judge"'], "the card uses a judge (ssp.grader or ssp.verify) but has no [judge] table"),
    ("ssp", ['data.documents="none"'], "data.documents is set, but SSP does not read it; remove it"),
    ("ssp", ["rollout.max_length=513"], "rollout.max_length is 513 but the largest of learner.buckets is 512"),
    ("ssp", ["rollout.slots=3", "mesh.fsdp=2"], "rollout.slots is 3, which is not divisible by"),
    ("ssp", ["train.one_step_off_policy=true"], "which needs devices of its own"),
    ("ssp", ["train.max_staleness=1", "train.one_step_off_policy=true", "rollout.devices=1"], "remove one"),
    ("ssp", ["train.max_staleness=1", "train.plays=3"], "plays is 3, but with max_staleness = 1 a step begins when"),
    ("ssp", ["train.max_staleness=4", "train.steps=4"], "before the last of which 3 updates can be missing; lower it"),
    ("scope", [f'judge.url="{NOWHERE}"', 'judge.model="m"'], "SCOPE does not use [judge]"),
    ("score", ["score.solver.samples=1"], "solver.samples must be at least 2"),
    ("spice", ["spice.reasoner.samples=1"], "one answer to a task has no variance to reward"),
    ("spell", ['spell.train=["responder", "responder"]'], "train must list at least one role, each once"),
    ("r_zero", ["model.adapter.rank=4"], 'adapters have their base as reference; set r_zero.reference = "base"'),
    ("dr_zero", ["dr_zero.window=[0.9, 0.1]"], "window must be [lowest, highest] share of right attempts"),
    ("absolute_zero", ["absolute_zero.tasks=['induction']"], "absolute_zero.tasks needs deduction or abduction"),
    ("spiral", ["train.batch_size=7"], "but SPIRAL does not use it; set"),
    ("sft", ["sft.loss.kl='k1'"], 'sft.loss.kl has no effect with objective = "supervised"'),
    ("rlvr", ["rlvr.max_turns=3"], "max_turns is 3, with 0 tools; calls and the answer are turns of their own"),
    ("dpo", ["dpo.loss.mini_batches=999999"], "dpo.loss.mini_batches is 999999, but a step has train.batch_size"),
]


def exam(more: str) -> str:
    return f'evaluate.sets=[{{name="e", path="{ATLAS}/questions_held_out.jsonl", {more}}}]'


# A card that breaks each rule, and what is said of it: {files} are those that the fixture writes.
RULES: list[tuple[str, str, Sequence[str], str]] = [
    ("game", "sft", ['retrieval.corpus="{atlas}/corpus.jsonl"'], "sft does not search; remove the table [retrieval]"),
    ("policies", "ssp", ['model.policies={nobody="{base}"}'], "model.policies names 'nobody'"),
    ("names of teachers", "ssp", ['teachers.actor.checkpoint="{base}"'], "[teachers.actor] has the name of a policy"),
    ("names of teachers", "ssp", ['teachers.base.checkpoint="{base}"'], "[teachers.base] has the name of a policy"),
    (
        "weights or a cache in 8 bits",
        "ssp",
        ['rollout.quantization="int8"'],
        "its loss does not correct for that; set rollout_cap",
    ),
    (
        "weights or a cache in 8 bits",
        "sft",
        ['rollout.quantization="int8"'],
        "is about rollouts, but sft trains on given texts",
    ),
    (
        "weights or a cache in 8 bits",
        "ssp",
        ['rollout.quantization="int8"', 'rollout.kv_cache_dtype="int8"'],
        "with rollout.quantization and rollout.kv_cache_dtype the episodes of",
    ),
    ("steps played ahead", "ssp", ["train.one_step_off_policy=true", "rollout.devices=1"], "set rollout_cap there"),
    (
        "steps that overlap",
        "ssp",
        ["train.max_staleness=1"],
        "set rollout_cap there, for example to 2.0, or rollout_mask",
    ),
    ("steps that overlap", "sft", ["train.max_staleness=1"], "is about rollouts, but sft trains on given texts"),
    (
        "steps that overlap",
        "spiral",
        ["train.max_staleness=1", 'spiral.policies=["first", "second"]'],
        "SPIRAL samples with those of first, second; make them adapters",
    ),
    ("steps that overlap", "spell", ["train.max_staleness=1"], "a step of SPELL follows from all of the one before"),
    (
        "steps that overlap",
        "ssp",
        ["train.max_staleness=1", 'teachers.t.checkpoint="{base}"'],
        "teachers with weights of their own ([teachers.t]) need too; serve it",
    ),
    ("replay of experts", "dpo", ["learner.router_replay=true"], "dpo trains on given texts; turn it off"),
    ("experts", "ssp", ["learner.router_replay=true"], "ssp/base has no experts; turn it off"),
    ("measures", "ssp", [exam('measures=["brilliance"]')], "has the measure 'brilliance'; there are"),
    ("measures", "ssp", [exam('measures=["judge"]')], "add [evaluate.judge] with url and model to the card"),
    ("measures", "ssp", [exam('measures=["rubric"]')], "need a grader, and this game has none"),
    ("measures", "sft", ["evaluate.max_turns=3"], "nothing is searched or called, so an episode has one turn"),
    (
        "reference",
        "r_zero",
        [exam('measures=["rubric"]'), "evaluate.grader={temperature=0.0, max_tokens=8}"],
        "R-Zero replaces it as reference",
    ),
    ("source of the data", "nothing", [], "data.preferences is missing; dpo needs a file of preferences"),
    ("mesh", "ssp", ["mesh.tensor=3"], "mesh tensor=3 does not divide the model's num_kv_heads=4"),
    ("mesh", "ssp", ["rollout.mesh={tensor=3}"], "rollout.mesh tensor=3 does not divide the model's num_kv_heads=4"),
    ("mesh", "ssp", ["mesh.context=8", 'learner.context_attention="ulysses"'], 'use "auto" or "ring"'),
    ("mesh", "ssp", ["mesh.tensor=2", "learner.sequence_parallel=true", "learner.buckets=[513]"], "turn learner.seq"),
    ("cache", "ssp", ["rollout.cache_gib=1e-7"], "rollout.cache_gib = 1e-07 cannot hold one episode"),
    ("cascade", "ssp", ['model.checkpoint="{files}/windows"', "rollout.cascade=2"], "but every layer has a window"),
    ("drafts", "ssp", ["rollout.draft_tokens=4", "rollout.cascade=2"], "which do not work together; set one of them"),
    ("adapters", "ssp", ['model.adapter.targets=["q_proj", "in_proj_a"]'], "model.adapter.targets names 'in_proj_a'"),
    ("vocabulary", "ssp", ['model.tokenizer="{atlas}/scope/base"'], "the tokenizer has 1266 tokens but the model"),
    ("tokenizer and template", "ssp", ['model.tokenizer="{files}/none"'], "{files}/none"),
    ("tokenizer and template", "ssp", ['model.chat_template="{files}/mute.jinja"'], "does not show what the user says"),
    (
        "ends of replies",
        "ssp",
        ['model.checkpoint="{files}/ends"'],
        "18 tokens end a reply, and the engine takes at most 16",
    ),
    ("model {}", "ssp", ['model.checkpoint="{files}/wide"'], "but config.json requires"),
    ("model {}", "ssp", ['model.checkpoint="{files}/none"'], "Model folder {files}/none does not exist"),
    (
        "models of policies",
        "ssp",
        ['model.policies={actor="{files}/other"}'],
        "from which actor starts, differs from the base",
    ),
    (
        "models of policies",
        "ssp",
        ['model.policies={actor="{files}/none"}'],
        "Model folder {files}/none does not exist",
    ),
    ("model {}", "ssp", ['model.policies={actor="{base}"}', "model.adapter.rank=4"], "which holds no adapter"),
    ("teacher {}", "ssp", ['teachers.t.checkpoint="{atlas}/spice/base"'], "has another vocabulary than the policies"),
    ("teacher {}", "ssp", ['teachers.t.checkpoint="{files}/none"'], "Model folder {files}/none does not exist"),
    ("prompts", "ssp", ['ssp.prompts="{files}/prompts"'], "solver.txt: unknown variable {quesion}"),
    ("prompts", "scope", ['scope.prompts="{files}/none"'], "{files}/none"),
    ("data", "ssp", ['data.answers="{files}/none.jsonl"'], "{files}/none.jsonl"),
    ("data", "ssp", ['data.answers="{files}/broken.jsonl"'], "{files}/broken.jsonl"),
    ("exam {.name}", "ssp", ['evaluate.sets=[{name="e", path="{files}/none.jsonl"}]'], "{files}/none.jsonl"),
    ("answers", "rlvr", ['rlvr.grader="choice"'], "240 of 240 rows have no answer that the grader choice reads"),
    ("encoder", "ssp", ['retrieval.encoder.checkpoint="{files}/none"'], "{files}/none"),
    ("search", "ssp", ['retrieval.corpus="{files}/none.jsonl"'], "{files}/none.jsonl"),
    ("search", "ssp", ['retrieval.index="{files}/index"'], "The index in {files}/index was built from another corpus"),
    ("search", "ssp", ['retrieval.index="{files}/prompts"'], "has other files and no index; choose an empty"),
    ("search", "server", [], "127.0.0.1:9"),
    ("origin", "ssp", ['train.origin="{files}/none"'], "{files}/none has no checkpoint"),
    ("origin", "ssp", ['train.origin="{files}/run"'], "is from a run of spice, but the card is for ssp"),
    ("tools", "twice", [], "the game own has two tools of the name search; give each its own"),
    ("tools", "unknown", [], "the role later calls 'serch', but the game own has the tools search; add it to"),
    ("calls of roles", "later", [], "the role 'later' would read no result of its tools"),
    ("first prompts", "unanswered", [], "the role 'asker' would read no result of its tools"),
    ("first prompts", "judged", [], "the game asks 'critic' but the card has no table with its endpoint"),
    ("length of episodes", "ssp", ["rollout.max_length=2000", "learner.buckets=[2000]"], "rollout.max_length is 2,000"),
    (
        "length of episodes",
        "ssp",
        [exam("samples=1"), "evaluate.max_length=2000"],
        "is for 1,024 tokens (max_position_embeddings of its config.json); lower it.",
    ),
    ("turns", "ssp", ["model.dialect=hermes"], "leaves out the search that model.dialect declares"),
    (
        "turns",
        "ssp",
        ['ssp.prompts="{files}/system"', 'model.chat_template="{files}/users.jinja"'],
        "does not support sys",
    ),
    (
        "services of tools",
        "absolute_zero",
        [f'sandbox.endpoint="{NOWHERE}"', "sandbox.retries=0"],
        "does not run Python",
    ),
    ("model behind {}", "ssp", [*JUDGE, "judge.retries=0"], "the judge at http://127.0.0.1:9 cannot be reached"),
    (
        "model behind {}",
        "ssp",
        [*JUDGE, 'judge.api_key_env="NO_KEY"'],
        "needs a key in the environment variable NO_KEY",
    ),
    (
        "endpoint of teacher {}",
        "ssp",
        [f'teachers.t={{url="{NOWHERE}", model="m", retries=0}}'],
        "the teacher t at http://127.0.0.1:9",
    ),
    (
        "first prompts",
        "ssp",
        ["rollout.max_length=20", "ssp.verify_max_tokens=8"],
        "32 are too long for",
    ),
    (
        "prompts of exam {.name}",
        "ssp",
        [exam("samples=1"), "evaluate.max_length=20", "evaluate.max_tokens=8"],
        "256 are too long for evalua",
    ),
    (
        "given answers",
        "sft",
        ['data.conversations="{files}/calls.jsonl"'],
        "row 2 of {files}/calls.jsonl: messages[1]: the chat te",
    ),
    (
        "given answers",
        "sft",
        ["learner.buckets=[16]", "rollout.max_length=16"],
        "nothing would be",
    ),
    (
        "given answers",
        "dpo",
        ["learner.buckets=[16]", "rollout.max_length=16"],
        "nothing would be",
    ),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the bad cards refer to."""
    folder = tmp_path_factory.mktemp("files")
    config = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
    sliding = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 8}
    for name, changes in (
        ("ends", {}),
        ("wide", {"vocab_size": config["vocab_size"] + 1}),
        ("other", {"rms_norm_eps": 0.5}),
        ("windows", {"layer_types": ["sliding_attention"] * 4, **sliding, "architectures": ["Qwen3ForCausalLM"]}),
    ):
        shutil.copytree(BASE, folder / name)
        (folder / name / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    ends = {"eos_token_id": list(range(1200, 1217))}
    (folder / "ends" / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    (folder / "mute.jinja").write_text("Answer the question.\n", encoding="utf-8")
    users = "{% for m in messages %}{{ m.content if m.role == 'user' else '' }}{% endfor %}"
    (folder / "users.jinja").write_text(users, encoding="utf-8")
    for name in ("prompts", "system"):
        shutil.copytree(ATLAS / "prompts" / "ssp", folder / name)
    (folder / "system" / "solver.system.txt").write_text("Search.", encoding="utf-8")
    solver = folder / "prompts" / "solver.txt"
    solver.write_text(solver.read_text(encoding="utf-8").replace("{question}", "{quesion}"), encoding="utf-8")
    (folder / "broken.jsonl").write_text('{"answer": 5}\n', encoding="utf-8")
    call = {"function": {"name": "f", "arguments": {}}}
    rows: list[dict[str, Any]] = [{"prompt": "a?", "completion": "b"}]
    rows.append({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "tool_calls": [call]}]})
    (folder / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "index").mkdir()
    manifest = {"version": 1, "corpus": "0" * 32, "embedder": "e", "lexical": True, "passages": 705, "width": 8}
    (folder / "index" / "manifest.json").write_text(json.dumps(manifest | {"chunk": 8, "embedded": 0, "scann": None}))
    checkpoint = folder / "run" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "empty").write_text("", encoding="utf-8")
    seal(checkpoint)
    spice = (ROOT / "configs" / "spice" / "atlas.toml").read_text(encoding="utf-8")
    (folder / "run" / "config.toml").write_text(spice, encoding="utf-8")
    return folder


def card_file(name: str, folder: Path) -> Path:
    """A game's Atlas card, or one of these made of SSP's: with a search server, or of a game of one's own."""
    if name in GAMES:
        return ROOT / "configs" / name / "atlas.toml"
    text = (ROOT / "configs" / ("dpo" if name == "nothing" else "ssp") / "atlas.toml").read_text(encoding="utf-8")
    if name == "nothing":
        text = text.replace('preferences = "assets/atlas/preferences.jsonl"', "")
    elif name == "server":
        text = text.replace('corpus = "assets/atlas/corpus.jsonl"', f'url = "{NOWHERE}"\ntimeout = 1.0')
    else:
        change = {
            "twice": 'tools=lambda cfg: (Tool("search", len, SEARCH),)',
            "unknown": 'roles=later("search", "serch", calls="stop")',
            "later": 'roles=later("search")',
            "unanswered": "play=play",
            "judged": "play=judged",
        }[name]
        (folder / f"{name}.py").write_text(OWN.replace("CHANGE", change), encoding="utf-8")
        text = text.replace('system = "ssp"', f'system = "{folder / name}.py"').replace("[ssp", "[own")
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{name}.toml"


def said_by_train(cfg: Config, run: Path) -> str:
    try:
        assemble(with_origin(cfg, run), run).world.close()
    except (UserError, OSError) as error:
        return sentence(error)
    return ""


def said_by_plan(card: Path, sets: Sequence[str]) -> str:
    try:
        plan(card, sets, hardware(None, compiled=False), search=False)
    except (UserError, OSError) as error:
        return sentence(error)
    return ""


@pytest.mark.parametrize(("rule", "game", "overrides", "part"), RULES)
def test_a_bad_card_is_refused_everywhere_with_one_sentence(
    files: Path, tmp_path: Path, rule: str, game: str, overrides: Sequence[str], part: str
) -> None:
    def filled(text: str) -> str:
        return text.replace("{files}", str(files)).replace("{atlas}", str(ATLAS)).replace("{base}", str(BASE))

    card, sets = card_file(game, tmp_path), ["evaluate.sets=[]", *map(filled, overrides)]
    cfg = load_card(card, sets)
    first = next(found for found in rules.check(cfg) if found.wrong)
    assert re.fullmatch(re.sub(r"{.*}", ".*", rule), first.name) and filled(part) in first.text
    assert said_by_train(cfg, tmp_path / "run") == first.text
    (broken, *_) = (each for each in rules.RULES if each.name == rule)
    if rules.plannable(cfg).issuperset(broken.needs):
        assert said_by_plan(card, sets) == first.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("game", "overrides", "part"), READ)
def test_tables_that_do_not_go_together_are_refused_where_a_card_is_read(
    game: str, overrides: Sequence[str], part: str
) -> None:
    with pytest.raises(UserError, match=re.escape(part)):
        load_card(ROOT / "configs" / game / "atlas.toml", overrides)


@pytest.mark.parametrize(
    "game", [pytest.param(game, marks=[] if game in ("ssp", "spiral") else pytest.mark.slow) for game in GAMES]
)
def test_a_good_card_is_accepted_everywhere(game: str, tmp_path: Path) -> None:
    card = card_file(game, tmp_path)
    cfg = load_card(card)
    assert [found for found in rules.check(cfg) if found.wrong] == []
    assert said_by_train(cfg, tmp_path / "run") == ""
    assert said_by_plan(card, []) == ""


def test_every_rule_has_a_bad_card() -> None:
    assert {rule for rule, *_ in RULES} == {rule.name for rule in rules.RULES}


def test_a_run_that_goes_on_is_not_asked_for_its_beginning(files: Path, tmp_path: Path) -> None:
    """The weights that it began with may be gone, and no prompt of its first step has to fit any more."""
    base = shutil.copytree(BASE, tmp_path / "base")
    card = load_card(card_file("ssp", files), [f"model.checkpoint={base}"])
    (base / "model.safetensors").unlink()
    assert "model.safetensors" in said_by_train(card, tmp_path / "new")
    (tmp_path / "old" / "checkpoints" / "1").mkdir(parents=True)
    assert said_by_train(card, tmp_path / "old") == ""
