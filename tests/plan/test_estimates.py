"""Times of engines and updates, worked out by hand, and never below what the chip allows."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import head_dim, kv_heads
from scope_jax.models.files.families import from_hf
from scope_jax.plan.architectures import public
from scope_jax.plan.assumptions import ASSUMED, Assumptions
from scope_jax.plan.estimates import DeviceWork, decode_work, pace, roofline, seconds, update_work
from scope_jax.plan.hardware import CHIPS, Hardware, hardware
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.run.engines import attention_over_pages
from scope_jax.sharding.chips import Chip
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.plan.world import LAYER, MODEL, WEIGHTS

CHIP = Chip("C", 1.0, 100.0, 10.0, 5.0, 2.0)  # FLOP/s, bytes/s of memory, of links, of the network
HALF = Assumptions(*[0.5] * 8, layer=0.25, slot=0.125, collective=1.0)
QUARTER = replace(HALF, attention=0.25, experts=0.1)


def test_the_seconds_of_each_kind_of_work():
    """50 FLOP/s in products, 25 in attention, 10 in experts; 5 bytes/s of memory, 2.5 of links, 1 of the network."""
    assert seconds(DeviceWork(products=100.0, experts=10.0), CHIP, QUARTER) == 2 + 1
    assert seconds(DeviceWork(products=100.0, weights=20.0), CHIP, QUARTER) == 4  # the weights take longer
    assert seconds(DeviceWork(attention=75.0, cache=20.0), CHIP, QUARTER) == 4
    assert seconds(DeviceWork(attention=100.0, cache=10.0, memory=5.0), CHIP, QUARTER) == 4 + 1
    assert seconds(DeviceWork(layers=4, slots=8, collectives=2), CHIP, HALF) == 1 + 1 + 2
    # what goes on beside the compute counts if it takes longer; what is waited for delays both
    work = DeviceWork(products=100.0, link=5.0, network=1.0)
    assert seconds(work, CHIP, HALF) == 2 + 2 + 1
    assert seconds(work.plus(DeviceWork(beside_link=2.5)), CHIP, HALF) == 2 + 2 + 1
    assert seconds(work.plus(DeviceWork(beside_link=5.0, beside_network=3.0)), CHIP, HALF) == 2 + 1 + 2 + 3


def test_the_roofline_is_the_slowest_of_compute_memory_links_and_network():
    work = DeviceWork(
        products=50.0, attention=30.0, experts=20.0, weights=3.0, cache=4.0, memory=2.0, link=1.0, beside_link=3.0
    )
    assert roofline(work, CHIP) == 1.0  # 100 FLOPs; 9 bytes take 0.9 s, 4 over links 0.8
    assert roofline(work.plus(DeviceWork(memory=3.0)), CHIP) == 1.2
    assert roofline(work.plus(DeviceWork(beside_link=6.0)), CHIP) == 2.0
    assert roofline(work.plus(DeviceWork(network=3.0, beside_network=1.0)), CHIP) == 2.0


def engine_on(on: Hardware, model: ModelConfig, slots: int, length: int, tensor: int) -> Engine:
    config = EngineConfig(slots, length, 16, jnp.bfloat16)
    how = attention_over_pages(on.platform, head_dim(model))
    return Engine(model, config, make_mesh(MeshConfig(1, -1, tensor), on.devices), how)


def test_the_work_of_a_token():
    """3 layers, 4 heads and 2 kv heads of 128, 8 slots on each of two devices; and 16 slots of a tensor group."""
    on, model = hardware("2xH100", compiled=False), from_hf(MODEL)
    alone = decode_work(engine_on(on, model, 16, 256, 1), on, 100)
    matrices = 3 * (LAYER - 768)
    assert alone.products == 8 * 2 * (matrices + 256 * 512)
    assert alone.weights == 2 * (WEIGHTS - 512 * 256)  # of the embedding table only rows are read
    assert alone.cache == 8 * 3 * (100 + 32) * 2 * 2 * 128 * 2  # the last page is half full, and read whole
    assert alone.attention == 8 * 3 * (100 + 32) * 4 * 4 * 128
    assert alone.memory == 8 * 8 * 512 * 4  # eight passes over float32 logits
    assert (alone.layers, alone.slots, alone.collectives, alone.link) == (3, 8 * 3, 0, 0)
    both = decode_work(engine_on(on, model, 16, 256, 2), on, 100)
    assert both.products == alone.products and both.cache == alone.cache and both.memory == alone.memory
    assert both.weights == 2 * (3 * (matrices / 3 / 2 + 768) + 256 + 512 * 256 / 2)  # norms are on both
    # the embedding and twice in each layer all-reduces of [16, 256], then half of the logits to the other device
    assert both.link == 7 * 16 * 256 * 2 + 16 * 512 / 2 * 4 / 2
    assert both.collectives == 2 * 3 + 3 and both.network == 0
    apart = hardware("2x1xH100", compiled=False)
    across = decode_work(engine_on(apart, model, 16, 256, 2), apart, 100)
    assert (across.link, across.network) == (0, both.link)


def test_experts_that_are_read_and_computed_by_the_devices_that_have_them():
    """128 experts over 8 devices of 8 slots: of a device's 16 those that one of 64 tokens picks, 8 of 128 each."""
    on, model = hardware("8xH100", compiled=False), public("Qwen3-30B-A3B-Instruct-2507")
    assert model is not None
    work = decode_work(engine_on(on, model, 64, 4096, 1), on, 1000)
    experts = 48 * 16 * 3 * 2048 * 768 * 2 * (1 - (1 - 8 / 128) ** 64)
    shared = 48 * (2048 * (2 * 4096 + 2 * 512) + 2048 * 128 + 2 * 2048 + 2 * 128) + 2048 + 151936 // 512 * 512 * 2048
    shared += 2048 * (512 if 151936 % 512 else 0)
    assert work.weights == pytest.approx(experts + 2 * shared)
    assert work.experts == 8 * 48 * 8 * 3 * 2 * 2048 * 768
    assert work.link == 2 * 8 * 7 * 2048 * 2 * 48  # tokens of seven others and their sums, in bfloat16


def test_the_pace_of_an_engine_whose_cache_is_full():
    """A token of a layer has 1,024 bytes on a device: 64 slots of 128 tokens need 24 MiB, and half of them have 12."""
    on, model = hardware("1xH100", compiled=False), from_hf(MODEL)
    engine = engine_on(on, model, 64, 256, 1)
    whole, half = (pace(engine, on, size * 2**20, 128) for size in (24, 12))
    assert (whole.slots, half.slots) == (64, 32)
    assert half.tokens_per_second == pytest.approx(32 / half.milliseconds * 1e3)
    assert half.tokens_per_second < whole.tokens_per_second and half.milliseconds < whole.milliseconds
    assert pace(engine, on, 2**40, 128) == whole


def learner_on(on: Hardware, model: ModelConfig, mesh: MeshConfig, rows: int, remat: str, rank: int = 0) -> Learner:
    section = LearnerSection(buckets=(256,), micro_batch_rows=rows, remat=remat)  # pyright: ignore[reportArgumentType]
    adapter = Adapter(rank, 2.0 * rank, ("all-linear",)) if rank else None
    dtypes = {"param_dtype": jnp.float32, "compute_dtype": jnp.bfloat16}
    return Learner(model, make_mesh(mesh, on.devices), OptimizerSection(), section, adapter=adapter, **dtypes)


def test_the_work_of_an_update():
    """Two devices with two rows of 256 tokens each; layers and logits are computed again."""
    on, model = hardware("2xH100", compiled=False), from_hf(MODEL)
    work = update_work(learner_on(on, model, MeshConfig(1, 2, 1), 4, "full"), on, 256)
    layers, head, attention = 2 * flops.weights_per_token(model), 2 * 256 * 512, flops.attention_flops(model, 256)
    assert work.products == 512 * (4 * layers + 4 * head)
    assert work.attention == 2 * attention / 2 * (2 + 2 + 5)
    values = 12 * 256 + 4 * (4 + 2) * 128 + 4 * 512
    trained = (WEIGHTS - 3 * 768 - 256) / 2 + 3 * 768 + 256
    assert work.memory == 512 * (3 * 4 * values * 2 + 8 * 4 * 512) + 36 * trained
    # weights twice in bfloat16 and their gradients in float32, half of them from or to the other device
    assert work.beside_link == WEIGHTS * (2 * 2 + 4) / 2 and work.link == work.network == work.beside_network == 0
    kept = update_work(learner_on(on, model, MeshConfig(1, 2, 1), 4, "none"), on, 256)
    assert kept.products == 512 * (3 * layers + 4 * head) and kept.attention == 2 * attention / 2 * 7
    frozen = update_work(learner_on(on, model, MeshConfig(1, 2, 1), 4, "full", rank=4), on, 256)
    assert frozen.products == 512 * (3 * layers + 3 * head) and frozen.beside_link == WEIGHTS * 2 * 2 / 2
    twice = update_work(learner_on(on, model, MeshConfig(1, 2, 1), 4, "full"), on, 256, micro_batches=2)
    assert twice.products == 2 * work.products and twice.memory == 2 * work.memory - 36 * trained


def test_what_crosses_the_network_between_nodes():
    """Two nodes of two: gradients of replicas once a step; or weights that all four share."""
    on, model = hardware("2x2xH100", compiled=False), from_hf(MODEL)
    replicas = update_work(learner_on(on, model, MeshConfig(2, 2, 1), 4, "full"), on, 256)
    trained = (WEIGHTS - 3 * 768 - 256) / 2 + 3 * 768 + 256
    assert replicas.beside_network == 4 * trained  # an all-reduce of two: half of it leaves twice
    assert replicas.beside_link == WEIGHTS * 8 / 2
    whole = update_work(learner_on(on, model, MeshConfig(1, 4, 1), 4, "full"), on, 256)
    assert whole.beside_network == WEIGHTS * 8 / 2 / 2  # its shard within the node, from the other node
    assert whole.beside_link == WEIGHTS * 8 / 2
    assert replicas.network == whole.network == 0
    tensor = update_work(learner_on(on, model, MeshConfig(1, 2, 2), 4, "full"), on, 256)
    assert tensor.link > 0 and tensor.network == 0  # tensor groups are within a node


MESHES = (
    ("1xH100", (1,)),
    ("8xB200", (1, 4, 8)),
    ("2x4xA100", (1, 4, 8)),
    ("2xv6e:2x2", (1, 4)),
    ("v7x:2x2x1", (2, 8)),
    ("v5e:2x4", (8,)),
)


@pytest.mark.parametrize(("name", "groups"), MESHES)
@pytest.mark.parametrize("named", ["Qwen3-8B", "Qwen3-30B-A3B-Instruct-2507", "Olmo-3-7B-Instruct"])
def test_no_estimate_is_below_the_roofline(name, groups, named):
    on, model = hardware(name, compiled=False), public(named)
    assert model is not None
    for tensor in (size for size in groups if kv_heads(model) % size == 0):
        engine = engine_on(on, model, 64, 8192, tensor)
        for length in (64, 1024, 8192):
            work = decode_work(engine, on, length)
            assert seconds(work, on.chip, ASSUMED[on.platform]) >= roofline(work, on.chip) > 0
        learner = learner_on(on, model, MeshConfig(1, -1, tensor), 64, "full")
        work = update_work(learner, on, 256)
        assert seconds(work, on.chip, ASSUMED[on.platform]) >= roofline(work, on.chip) > 0


def test_every_chip_and_assumption_is_known_and_a_share_is_at_most_one():
    for chip in CHIPS.values():
        assert chip.peak and chip.bandwidth and chip.link and chip.network
    times = {"layer", "slot", "collective"}
    for assumed in ASSUMED.values():
        assert all(0 < value <= 1 for name, value in vars(assumed).items() if name not in times)
        assert all(0 <= vars(assumed)[name] < 1e-3 for name in times)
