"""Memory and FLOPs by arithmetic, on values worked out by hand, and the settings that a plan proposes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scope_jax.config import LearnerSection
from scope_jax.config.base import CardError
from scope_jax.errors import UserError
from scope_jax.games import game_of, load_card
from scope_jax.learner import batching
from scope_jax.learner.fitting import UNROLLED
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.files.families import from_hf
from scope_jax.models.files.weights import load_config
from scope_jax.plan.architectures import SHAPES
from scope_jax.plan.command import plan
from scope_jax.plan.costs import Costs
from scope_jax.plan.hardware import GIB, Absent, Chip, Hardware, hardware
from scope_jax.plan.knobs import freed, remat_policies, setting_that_fits
from scope_jax.plan.memory import MORE, SEARCH, STEP, Residents, compiled_peak
from scope_jax.plan.page import lines, verdict
from scope_jax.plan.planning import RESERVE, Planner, figures, index_vectors
from scope_jax.plan.programs import Compiled
from scope_jax.run import host_memory
from scope_jax.run.sizes import COMPILER, ENTRY, PASS, PROCESS, device_bytes
from scope_jax.sharding.program import name_of
from tests.plan.world import CARD, LAYER, MODEL, SMALL, WEIGHTS, absent

# Weights that the hub states for each model (its safetensors metadata).
STATED = {
    "Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen2.5-Coder-3B": 3_085_938_688,
    "Qwen2.5-7B-Instruct": 7_615_616_512,
    "DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen3-4B-Base": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-30B-A3B-Instruct-2507": 30_532_122_624,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "OctoThinker-3B-Hybrid-Base": 3_212_749_824,
    "Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "SmolLM3-3B": 3_075_098_624,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "Olmo-3-7B-Instruct": 7_298_011_136,
    "Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-235B-A22B-Instruct-2507": 235_093_634_560,
    "Llama-3.1-70B-Instruct": 70_553_706_496,
    "Llama-3.1-405B-Instruct": 405_853_388_800,
    "Llama-3.2-1B-Instruct": 1_235_814_400,
}


# Billions of a decoder's weights that model cards state beside those of its vision tower.
DECODERS = {
    "Ministral-3-3B-Instruct-2512": 3.4,
    "Ministral-3-8B-Base-2512": 8.4,
    "Ministral-3-14B-Instruct-2512": 13.5,
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_beside_a_vision_tower_have_about_as_many_weights_as_stated(name):
    weights = sum(math.prod(shape) for shape in hf_shapes(from_hf(SHAPES[name])).values())
    assert weights / 1e9 == pytest.approx(DECODERS[name], abs=0.1)


@pytest.mark.parametrize("name", STATED)
def test_the_shapes_of_known_models_have_as_many_weights_as_stated(name):
    assert sum(math.prod(shape) for shape in hf_shapes(from_hf(SHAPES[name])).values()) == STATED[name]


def test_several_processes_need_room_for_what_they_exchange():
    card = load_card(CARD, SMALL)
    one, two = absent(2, 1.0), absent(2, 1.0)
    apart = [replace(device, process_index=device.id) for device in two.devices]
    alone, divided = (Planner(from_hf(MODEL), on).needs(card).peaks for on in (one, replace(two, devices=apart)))
    for phase, peak in alone.items():
        more = 32 * 2**20 if phase == "generate" else 0
        assert divided[phase].total == peak.total + more
        assert divided[phase].parts.get("exchange", 0) == more


def test_the_residents_of_a_small_card():
    """Two devices, fsdp 2: float32 master and moments, bfloat16 reference and engine, pages of 64 tokens."""
    needs = Planner(from_hf(MODEL), absent(2, 1.0), vectors=1000).needs(load_card(CARD, SMALL))
    held = needs.held
    replicated = 3 * (2 * 256 + 2 * 128) + 256  # norms are on every device
    shard = (WEIGHTS - replicated) / 2 + replicated
    assert held.master == 4 * shard
    assert held.moments == 2 * 4 * shard + 4  # and the number of steps
    assert held.reference == 2 * shard
    assert held.engine == 2 * WEIGHTS
    page = 2 * 3 * 2 * 128 * 64 * 2  # keys and values, layers, heads, width, tokens, bytes
    assert held.cache == (8 * (4 + 1) + 1) * page  # 8 slots of 256 tokens, one page more for each, page 0
    assert held.layer == max(LAYER * 2 + 4 * ((LAYER - 768) / 2 + 768), 2 * 512 * 256)
    assert held.index == 4 * 1000 / 2
    assert needs.peaks["generate"].total == pytest.approx(
        held.idle + held.index + held.engine + held.cache + held.slots + 12 * 8 * 512
    )


def test_scope_with_adapters_fits_one_gpu_of_80_gb():
    """Two policies, judge and reference over one base, which learner and engine share; a whole-weight state of a policy
    has 12 bytes per weight."""
    planner = Planner(from_hf(SHAPES["Qwen3-8B"]), hardware("1xH100"))
    needs = planner.needs(load_card("configs/scope/adapters/qwen3-8b-one-gpu.toml"))
    held, factors = needs.held, 36 * 32 * (4 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    assert needs.engine.config.slots == 64 and needs.engine.config.max_length == 16384
    assert held.policies == 2 and held.master == 4 * factors and held.moments == 8 * factors + 4
    assert held.state < 0.02 * 12 * STATED["Qwen3-8B"]
    assert held.reference == held.shared == pytest.approx(2 * STATED["Qwen3-8B"], rel=1e-3)  # the tables are padded
    assert all(held.parts(phase)["engine weights"] == 2 * 2 * factors for phase in ("publish", "generate", "learn"))
    assert needs.peak.total <= planner.limit
    divided = Planner(from_hf(MODEL), absent(2, 1.0)).needs(load_card(CARD, [*SMALL, "model.adapter.rank=4"])).held
    assert divided.adapters and divided.shared == 0  # sharded for training, copied for decoding


def test_a_context_group_shares_weights_in_an_update_and_generates_for_rows_of_its_own():
    """Two devices: as fsdp 2, but each has half of the tokens of every row."""
    planner = Planner(from_hf(MODEL), absent(2, 1.0))
    whole = planner.needs(load_card(CARD, SMALL))
    split = planner.needs(load_card(CARD, [*SMALL, "mesh.context=2"]))
    assert split.learner.mesh.shape["context"] == 2 and split.learner.context_attention == "ulysses"
    assert split.engine.mesh.shape["context"] == 1 and split.engine.row_shards == whole.engine.row_shards == 2
    assert split.held == whole.held
    assert split.peaks["generate"].parts == whole.peaks["generate"].parts
    halves = planner.needs(load_card(CARD, [*SMALL, "mesh.context=2", "learner.micro_batch_rows=4"]))
    # 8 rows on 2 devices, 8 rows in halves, 4 rows in halves
    parts = [one.peaks["learn"].parts["activations"] for one in (whole, split, halves)]
    assert parts[0] == parts[1] == 2 * parts[2]
    sets = [*SMALL, "mesh.context=2", "mesh.tensor=2", 'learner.context_attention="ulysses"']
    with pytest.raises(ValueError, match=r"mesh\.context = 2"):  # one kv head on each device of a tensor group
        Planner(from_hf(MODEL), absent(4, 1.0)).needs(load_card(CARD, sets))
    with pytest.raises(CardError, match=r"learner\.buckets has 130"):
        load_card(CARD, [*SMALL, "mesh.context=2", "learner.buckets=[130, 256]"])


def test_devices_that_only_generate_or_only_learn():
    """Four devices of which two generate: each part is that of a card over two devices, without the other."""
    shared = Planner(from_hf(MODEL), absent(2, 1.0), vectors=1000).needs(load_card(CARD, SMALL))
    apart = Planner(from_hf(MODEL), absent(4, 1.0), vectors=1000).needs(load_card(CARD, [*SMALL, "rollout.devices=2"]))
    here, there = (needs.peaks["learn"].parts for needs in (shared, apart))
    assert there == {**here, "search index": 0.0}
    sampling, alone = (needs.peaks["generate"].parts for needs in (shared, apart))
    states = {"master weights", "moments", "reference"}
    assert alone == {name: size for name, size in sampling.items() if name not in states}
    held = apart.held  # a layer is sent from a whole copy on each device that learns, in the engine's bfloat16
    assert held.layer == max(4 * ((LAYER - 768) / 2 + 768) + 2 * LAYER, 2 * 512 * 256)
    assert set(apart.peaks["publish"].parts) - set(here) == {"publish transient"}
    assert apart.peak.total < shared.peak.total
    with pytest.raises(ValueError, match=r"rollout\.devices is 2, but a process has 2 devices"):
        Planner(from_hf(MODEL), absent(2, 1.0)).needs(load_card(CARD, [*SMALL, "rollout.devices=2"]))


TEACHER = MODEL | {"num_hidden_layers": 40, "hidden_size": 512}


def test_a_teacher_has_a_phase_of_its_own(tmp_path):
    """Its weights are divided over the devices of a process while the engine has none; they wait in host memory."""
    folder = tmp_path / "teacher"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TEACHER))
    model = from_hf(TEACHER)
    count = sum(math.prod(shape) for shape in hf_shapes(model).values())
    norms = 40 * (2 * 512 + 2 * 128) + 512  # on every device
    sets = [*SMALL, f'teachers.big.checkpoint="{folder}"', 'teachers.far={url="http://127.0.0.1:1", model="m"}']
    plain, needs = (Planner(from_hf(MODEL), absent(2, 1.0)).needs(load_card(CARD, each)) for each in (SMALL, sets))
    assert "rate" not in plain.peaks
    assert {phase: peak.parts for phase, peak in needs.peaks.items() if phase != "rate"} == {
        phase: peak.parts for phase, peak in plain.peaks.items()
    }
    rate, learn = needs.peaks["rate"], needs.peaks["learn"].parts
    weights = 2 * ((count - norms) / 2 + norms)  # bfloat16
    assert rate.program == "teacher big @256" and needs.held.host == weights
    states = {"master weights", "moments", "reference"}
    held = {name: size for name, size in rate.parts.items() if name in (*states, "teacher", "engine weights", "cache")}
    assert held == {**{name: learn[name] for name in states}, "teacher": weights}
    assert rate.parts["activations"] == 256 * (4 * 512 + (8 + 4) * 128 + 3 * 512) * 2

    def planned(count, *more):
        return Planner(from_hf(MODEL), absent(count, 1.0)).needs(load_card(CARD, [*sets, *more])).peaks

    offloaded, alone = planned(2, "train.offload=true")["rate"].parts, planned(4, "rollout.devices=2")["rate"].parts
    assert not any(offloaded[name] for name in states) and offloaded["teacher"] == weights
    assert alone["teacher"] == weights and alone["engine weights"] == 2 * WEIGHTS and not states & set(alone)
    adapter = planned(2, "model.adapter.rank=4")
    assert adapter["rate"].parts["engine weights"] == adapter["learn"].parts["engine weights"] > 0
    processes = [replace(device, process_index=device.id) for device in absent(2, 1.0).devices]
    divided = Planner(from_hf(MODEL), replace(absent(2, 1.0), devices=processes)).needs(load_card(CARD, sets))
    assert divided.peaks["rate"].parts["teacher"] == 2 * count  # each process has a copy
    assert needs.peak.phase == "rate"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    text = list(lines(plan(Path(CARD), sets, absent(2, 1.0), model_config=file, search=False)))
    assert "in the phase 'rate'" in text[0] and any(line.startswith("host memory") for line in text)
    missing = [*SMALL, f'teachers.big.checkpoint="{tmp_path}/other"']
    with pytest.raises(
        UserError, match=r"other does not exist.*give a folder that is there as teachers\.big\.checkpoint"
    ):
        Planner(from_hf(MODEL), absent(2, 1.0)).needs(load_card(CARD, missing))


def residents(**changed) -> Residents:
    given = {
        "policies": 2,
        "master": 4.0,
        "moments": 8.0,
        "reference": 2.0,
        "engine": 16.0,
        "cache": 32.0,
        "slots": 1.0,
    }
    return Residents(**{**given, "layer": 3.0, "index": 5.0, "offload": False, **changed})


def test_what_lives_together_in_each_phase():
    here, away = residents(), residents(offload=True)
    totals = [sum(one.parts(phase).values()) for one in (here, away) for phase in ("publish", "generate", "learn")]
    #         two states, reference, index     engine, layer; engine, cache, slots; nothing
    assert totals[:3] == [26 + 5 + 16 + 3, 26 + 5 + 16 + 32 + 1, 26 + 5]
    #         the published weights            no state at all                one state and the reference
    assert totals[3:] == [4 + 5 + 16 + 3, 5 + 16 + 32 + 1, 12 + 2 + 5]
    assert (here.host, away.host, residents(copies=3).host) == (0, 26, 48)


def test_a_step_of_several_models_that_is_played_ahead_takes_host_memory():
    caps = ("scope.challenger.loss.rollout_cap=2.0", "scope.solver.loss.rollout_cap=2.0")
    sets = ("train.one_step_off_policy=true", "rollout.devices=1", *caps)
    for changes, copies in (((), 3), (("model.adapter.rank=4",), 0)):
        held = Planner(from_hf(MODEL), absent(2, 1.0)).needs(load_card("scope/atlas", [*sets, *changes])).held
        assert held.copies == copies and (held.host == 3 * held.engine > 0) == (copies > 0)


@pytest.mark.parametrize("adapters", [False, True])
def test_arguments_that_residents_count(adapters):
    """Bytes of a program's arguments that are there anyway are counted once, by `Residents`."""
    cfg = load_card(CARD, [*SMALL, *(["model.adapter.rank=4"] if adapters else [])])
    needs = Planner(from_hf(MODEL), absent(2, 1.0)).needs(cfg)
    held, learner, engine = needs.held, needs.learner, needs.engine
    batch = learner.abstract_batch(256)
    reference = device_bytes(learner.abstract_state(reference=True).ref_params)
    base = reference if adapters else 0  # adapters are over it
    card = game_of(cfg).updates(cfg)[0].card
    scores = [
        learner.score_program(batch, policy=policy, reference=ref)
        for policy, ref in ((True, True), (True, False), (False, True))
    ]
    programs = [learner.step_program(card, batch), *scores, *engine.programs()]
    resident = {program.name: device_bytes(program.resident) for program in programs}
    assert resident == {
        "update @256": held.state + base,
        "score old and reference @256": held.master + reference,
        "score old @256": held.master + base,
        "score reference @256": reference,
        "decode": held.engine + held.cache + held.slots,
        "prefill": held.engine + held.cache,
    }
    assert not adapters or held.reference == reference

    def temporaries(refused: bool) -> float:
        one = Compiled(programs[0], 0, 0, 1e9, 0, refused, 0.0, Costs(), Costs(), 0, 0)
        return compiled_peak(held, "learn", [one], resident).parts["temporaries"]

    assert (temporaries(False), temporaries(True)) == (1e9 - resident["update @256"], 1e9)


def test_flops_in_theory():
    model = from_hf(MODEL)
    per_token = 3 * (2 * 256 * 512 + 2 * 256 * 256 + 3 * 256 * 512)
    assert flops.weights_per_token(model) == per_token
    assert [flops.pairs(4, window) for window in (None, 2, 1, 9)] == [10, 7, 4, 10]
    attention = 3 * 4 * (100 * 101 / 2) * 4 * 128
    assert flops.attention_flops(model, 100) == attention
    forward = 2 * (2 * per_token * 100 + attention) + 2 * 30 * 256 * 512
    assert flops.forward_flops(model, 2, 100, 30) == forward
    assert flops.update_flops(model, 2, 100, 30) == 3 * forward
    # forward, forward again, dq: 3 products, dk and dv: 4
    assert flops.splash_flops(model, 2, 100, backward=True, recomputed=True) == 2 * attention / 2 * 11
    experts = from_hf(SHAPES["Qwen3-30B-A3B-Instruct-2507"])
    layer = 2048 * (2 * 4096 + 2 * 512) + 8 * 3 * 2048 * 768 + 2048 * 128
    assert flops.weights_per_token(experts) == 48 * layer
    # 11 products of 2 FLOPs for each weight of a matrix of eight experts
    assert flops.expert_flops(experts, 10, 11) == 11 * 2 * 10 * 48 * 8 * 2048 * 768
    assert flops.expert_flops(model, 10, 11) == 0


def test_flops_that_an_update_executes():
    """Each forward product is one, each gradient another; logits and, with "full", layers are computed again. Attention
    has 2 products forward and 5 backward, of splash 7, and 2 where the layer is computed again."""
    model = from_hf(MODEL)
    layers, head, attention = flops.weights_per_token(model), 30 * 256 * 512, flops.attention_flops(model, 100)
    done = flops.executed_flops(model, 100, 30, "none")
    assert (done.products, done.attention, done.experts) == (3 * 2 * layers * 100 + 4 * 2 * head, attention / 2 * 7, 0)
    full = flops.executed_flops(model, 100, 30, "full", splash=True)
    assert (full.products, full.attention) == (4 * 2 * layers * 100 + 4 * 2 * head, attention / 2 * (2 + 2 + 7))
    qkv = 3 * 256 * (4 + 2 * 2) * 128
    assert flops.executed_flops(model, 100, 30, "qkv").products == full.products - 2 * qkv * 100
    assert flops.executed_flops(model, 100, 30, "dots").products == done.products
    frozen = flops.executed_flops(model, 100, 30, "full", frozen=True)
    assert frozen.products == 3 * 2 * layers * 100 + 3 * 2 * head
    # beyond what is needed: logits once, and 1 of 7 products over the pairs
    assert done.total == flops.update_flops(model, 1, 100, 30) + 2 * head + attention / 2
    experts = from_hf(SHAPES["Qwen3-30B-A3B-Instruct-2507"])
    assert flops.executed_flops(experts, 10, 10, "full").experts == flops.expert_flops(experts, 10, 9 + 2)


def test_an_abstract_batch_has_the_shapes_of_a_packed_one():
    section = LearnerSection(buckets=(64,), micro_batch_rows=6, logprob_chunk=128)
    sampled_T = np.arange(64) >= 24
    datum = Datum(np.zeros(64, np.int32), sampled_T, np.zeros(64, np.float32))
    rows = [Episode("solver", "actor", str(i), (datum,), 0.0, advantage=1.0) for i in range(2 * 8)]
    packed = batching.pack(rows, section, row_shards=4)  # two rows on each shard: 16 rows are two micro-batches
    planned = batching.abstract(section, 4, 64, 40, 2)
    for name, array in vars(packed).items():
        if name in ("sequences", "depths"):
            assert array == vars(planned)[name]
        elif name == "roles":
            assert len(array) == len(planned.roles)
        elif array is None:  # no teacher
            assert vars(planned)[name] is None
        else:
            assert (array.shape, array.dtype) == (vars(planned)[name].shape, vars(planned)[name].dtype), name
    with pytest.raises(ValueError, match="micro_batch_rows is 0"):
        batching.abstract(section.model_copy(update={"micro_batch_rows": 0}), 4, 64, 40, 2)


def test_a_card_that_does_not_fit_and_a_setting_that_does():
    """64 slots of 256 tokens are 31 MiB of pages on each of two devices of 51 MiB, beside 30 of weights and states."""
    model = from_hf(MODEL)
    on = absent(2, 0.05)
    sets = [*SMALL, "rollout.slots=64", "learner.micro_batch_rows=2"]
    planner = Planner(model, on)
    needs = planner.needs(load_card(CARD, sets))
    assert needs.peak.phase == "generate" and needs.peak.total > planner.limit
    setting = setting_that_fits(planner, Path(CARD), sets, needs)
    assert setting is not None
    fitting = planner.needs(load_card(CARD, [*sets, *setting]))
    assert fitting.peak.total <= planner.limit


def test_a_plan_says_what_each_setting_frees(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    found = plan(Path(CARD), [*SMALL, "rollout.slots=512"], absent(2, 0.1), model_config=file)
    assert (found["compiled"], found["fits"], found["phase"]) == (False, False, "generate")
    assert found["shortfall_gib"] == pytest.approx(found["peak_gib"] - 0.95 * 0.1, abs=0.02)
    freed = {row["set"].partition("=")[0]: row["frees_gib"] for row in found["knobs"]}
    assert freed["rollout.cache_gib"] == pytest.approx(found["shortfall_gib"], abs=0.02)
    assert freed["train.offload"] > 0
    assert "compiled here" in " ".join(found["notes"])


def cpu(gib):
    return Hardware("this machine", "cpu", Chip("cpu", gib * GIB, None, None), [Absent(0, "cpu", "cpu")])


def test_a_cache_of_a_page_for_each_slot_gets_a_budget():
    """64 slots of 4,096 tokens of Qwen3-0.6B, 2 · 8 · 128 · 28 values of two bytes each, are 28 GiB."""
    sets = ["learner.buckets=[4096]", "learner.micro_batch_rows=2", "learner.remat=full", "rollout.slots=64"]
    sets += ["rollout.max_length=4096", 'model.compute_dtype="bfloat16"']
    model = from_hf(SHAPES["Qwen3-0.6B"])
    planner = Planner(model, cpu(24))
    needs = planner.needs(load_card(CARD, sets))
    assert needs.peak.total > planner.limit and "cache" in needs.held.parts(needs.peak.phase)
    row = 4096 * 2 * 8 * 128 * 28 * 2
    assert needs.held.cache == 64 * row
    setting = setting_that_fits(planner, Path(CARD), sets, needs)
    assert setting is not None
    (change,) = setting
    key, _, gibs = change.partition("=")
    fitting = planner.needs(load_card(CARD, [*sets, change]))
    assert key == "rollout.cache_gib" and fitting.peak.total <= planner.limit < fitting.peak.total + row
    assert needs.engine.paging.by_slot and not fitting.engine.paging.by_slot and fitting.engine.full_rows < 64
    rows = {one["set"]: one["frees_gib"] for one in freed(planner, Path(CARD), sets, needs)}
    assert rows[change] == pytest.approx(64 * row / GIB - float(gibs), abs=0.01)


def test_an_adapter_is_the_last_setting_that_is_tried(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    roomy, narrow = (plan(Path(CARD), SMALL, absent(1, gib), model_config=file) for gib in (0.08, 0.05))
    assert not roomy["fits"] and "model.adapter.rank=16" not in roomy["setting"]
    assert narrow["setting"][0] == "model.adapter.rank=16"
    assert "--set model.adapter.rank=16" in verdict(narrow) and "trains an adapter and not all weights" in verdict(
        narrow
    )


def test_the_fastest_policy_of_rematerialisation_that_fits(tmp_path):
    """By arithmetic memory falls from "none" to "full"; a limit between two of them decides."""
    model = from_hf(MODEL)
    planner = Planner(model, absent(2, 80))
    found = remat_policies(planner, Path(CARD), SMALL)
    assert [row["remat"] for row in found] == ["none", "dots", "qkv", "attention", "full"]
    assert all(row["fits"] for row in found)
    peaks = [row["peak_gib"] for row in found]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > peaks[-1]
    needed = [planner.needs(load_card(CARD, [*SMALL, f"learner.remat={remat}"])) for remat in ("none", "dots")]
    limit = sum(one.peaks["learn"].total for one in needed) / 2 / (1 - RESERVE) / GIB
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    text = list(lines(plan(Path(CARD), SMALL, absent(2, limit), model_config=file, search=False, remat=True)))
    (chosen,) = [line for line in text if line.endswith("<- the fastest that fits")]
    assert chosen.startswith("learner.remat=dots")
    assert any(line.startswith("learner.remat=none") and "does not fit" in line for line in text)


WITHOUT_SEARCH = "configs/spiral/atlas.toml"
OPEN = ["learner.remat=auto", "learner.micro_batch_rows=auto"]


def test_what_auto_keeps_follows_the_hardware(monkeypatch):
    """The most that has room on a device of the kind, the same in every plan and run; the plan says it."""
    model = from_hf(SHAPES["Qwen3-0.6B"])

    def chosen(card, on, *sets):
        planner = Planner(model, on)
        needs = planner.needs(load_card(card, [*OPEN, *sets]))
        found = figures(planner, needs)
        assert (found["rows"], found["kept"]) == (needs.learner.section.micro_batch_rows, needs.learner.section.remat)
        assert needs.peaks["learn"].total <= planner.limit or found["kept"] == "full"
        return found["rows"], found["kept"]

    gpu = hardware("1xH100", compiled=False)
    assert chosen(WITHOUT_SEARCH, gpu) == (8, "dots")
    assert chosen(WITHOUT_SEARCH, gpu, "learner.buckets=[65536]") == (8, "full")
    assert chosen(CARD, gpu) == (8, "full")  # its index has room as well, of a size that is not known
    for gib, kept in ((400, "none"), (8, "full")):
        monkeypatch.setattr(host_memory, "limit", lambda gib=gib: gib * GIB)
        assert chosen(WITHOUT_SEARCH, cpu(400), "learner.buckets=[1024]") == (2, kept)


def test_vectors_of_the_index():
    cfg = load_card("configs/ssp/qwen2.5-7b.toml")
    assert index_vectors(cfg, "21015324x768") == (21015324 * 768, "")
    assert "not counted" in index_vectors(cfg, None)[1]
    with pytest.raises(UserError, match="is not of the form PASSAGESxWIDTH"):
        index_vectors(cfg, "0x768")
    assert index_vectors(load_card("configs/scope/qwen3-8b.toml"), None) == (0, "")
    with pytest.raises(ValueError, match="PASSAGESxWIDTH"):
        index_vectors(cfg, "many")


def test_longer_exams_are_counted_in_if_the_card_has_any():
    """SCOPE section 4.1: 24,576 tokens, where training has 16,384."""
    planner = Planner(from_hf(SHAPES["Qwen3-8B"]), hardware("1xH100"))
    one = "configs/scope/adapters/qwen3-8b-one-gpu.toml"
    needs = planner.needs(load_card(one, ['evaluate.sets=[{name="exam", path="none"}]']))
    assert needs.engine.config.max_length == 24576
    counted = needs.engine.most_programs()  # by the names that JAX's events have
    assert {name_of(program.function): 1 for program in needs.engine.programs()}.items() <= counted.items()


def test_a_cpu_counts_its_program_and_what_unrolled_layers_keep():
    """An adapter of Qwen3-0.6B: a layer has values of 1,536 tokens × (4 · 1024 + 48 heads · 128 + 3 · 3072), each of
    four bytes; a slot's page 1,536 tokens × 2 · 8 heads · 128 · 28 layers."""
    card = load_card("configs/ssp/adapters/qwen3-0.6b-cpu.toml")
    on = cpu(16)
    needs = Planner(from_hf(SHAPES["Qwen3-0.6B"]), on).needs(card)
    generate, learn = (needs.peaks[phase] for phase in ("generate", "learn"))
    assert {name_of(program.function) for program in needs.engine.programs()} <= set(needs.engine.most_programs())
    # Of prompts, of decoding, of slots that begin and go on; of two updates and three scores.
    programs = (4 + 2 * STEP + 3) * 28 * PASS
    assert generate.parts["program"] == pytest.approx(PROCESS + SEARCH + 151936 * ENTRY + programs)
    assert learn.parts["program"] == generate.parts["program"]
    assert generate.parts["cache"] == card.rollout.slots * 1536 * 2 * 8 * 128 * 28 * 4
    values = 4 * 1536 * (4 * 1024 + 48 * 128 + 3 * 3072)
    assert learn.parts["activations"] == pytest.approx(28 * (4 * 1536 * 1024 + UNROLLED * values))
    assert learn.parts["gathered weights"] == 0 and learn.parts["logits"] == 2 * 256 * 152064 * 4  # padded


def test_a_small_model_on_a_cpu_needs_most_while_its_update_is_compiled():
    """Whole weights of two equal layers, of which the learner's programs have one: the compiler's memory is more than
    what an update of so small a model has at a time."""
    on = cpu(16)
    card = load_card("configs/spiral/atlas.toml")
    needs = Planner(load_config(card.model.checkpoint), on).needs(card)
    learn = needs.peaks["learn"]
    assert learn.program == "compiling update @128"
    assert learn.parts["compiler"] == pytest.approx(COMPILER + MORE * STEP * PASS)
    assert needs.peak == learn
