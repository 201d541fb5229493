"""Kernels that do not work on a machine are replaced by XLA's programs when a run begins."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from scope_jax.games import load_card
from scope_jax.models.decoder import backends as kernels
from scope_jax.models.decoder import moe
from scope_jax.models.decoder.backends import DENSE, EXPERTS, Heads
from scope_jax.models.decoder.check import Check
from scope_jax.run import kernels as run_kernels
from scope_jax.run.assemble import assemble
from scope_jax.run.kernels import for_learning, for_sampling
from tests.shapes import like

CARD = "configs/ssp/atlas.toml"


def refuse() -> float:
    raise RuntimeError("the compiler knows no such\n architecture")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A function that makes this machine one with a GPU, whose kernels have these deviations, or raise; it returns the
    names of the checks that were made."""

    def of(**deviations: float | None) -> list[str]:
        made: list[str] = []

        def measure(name: str, deviation: float | None) -> float:
            made.append(name)
            return refuse() if deviation is None else deviation

        def checks(platform: str, sizes: Heads, dtype: str) -> list[Check]:
            assert (platform, dtype) == ("gpu", "float32")
            names = {one.name for one in kernels_of("gpu", sizes, "bfloat16")}
            return [
                Check(name, "XLA", 0.02, lambda name=name: measure(name, deviations.get(name.split()[0], 0.0)))
                for name in sorted(names)
            ]

        kernels_of = kernels.checks
        device = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")
        monkeypatch.setattr(run_kernels.jax, "local_devices", lambda: [device])
        monkeypatch.setattr(run_kernels.kernels, "checks", checks)
        return made

    return of


def test_all_work(gpu):
    """Windows are checked for a model that has some, pages unless the card names the loop, experts if any."""
    made, said = gpu(), []
    card = load_card(CARD)
    assert for_sampling(card, DENSE, said.append) == (card, DENSE)
    assert for_learning(card, DENSE, said.append) is card and not said
    assert made == [
        "attention over pages, decoding",
        "attention over pages, prompts",
        "norm and rotation of decoding rows",
        "attention of the learner (cudnn_mask) and its gradient",
        "attention without a mask and its gradient, a text a row",
        "attention without a mask and its gradient, several texts",
        "attention without a mask and its gradient, shared beginnings",
    ]
    made.clear()
    loop = load_card(CARD, ['rollout.attention="loop"'])
    assert for_sampling(loop, like(EXPERTS, layer_windows=(8, None)), said.append)[0] is loop
    assert made == ["products of experts and their gradients", "routing and experts of a few tokens"]
    made.clear()
    for_sampling(card, like(DENSE, layer_windows=(8, None)), None)
    assert "attention over pages, decoding, with a window" in made
    narrow = load_card(CARD, ['rollout.kv_cache_dtype="int8"'])
    made.clear()
    for_sampling(narrow, DENSE, None)
    assert "attention over pages, decoding, keys and values in 8 bits" in made


def test_one_that_differs_or_raises(gpu):
    """One sentence for each kernel, whichever of its checks fail; the others stay."""
    gpu(attention=math.nan, products=None)
    said: list[str] = []
    card, model = for_sampling(load_card(CARD), EXPERTS, said.append)
    assert card.rollout.attention == "loop" and not any(vars(layer.feed)["kernels"] for layer in model.layers)
    assert said == [
        "the kernel for attention over pages does not work on this machine (attention over pages, decoding: it is nan "
        'from XLA, at most 0.02 is allowed); rollout.attention = "loop" takes its place, which is slower; please '
        "report it with the output of scope-jax selftest --json.",
        "the kernel for products of experts does not work on this machine (products of experts and their gradients: "
        "RuntimeError: the compiler knows no such architecture); a loop over the experts' rows takes its place, which "
        "is slower; please report it with the output of scope-jax selftest --json.",
    ]
    assert for_learning(card, EXPERTS, said.append).learner.attention == "reference" and len(said) == 3


def test_kernels_without_a_mask_that_differ(gpu, monkeypatch):
    """Those with one take their place, which were checked, too."""
    gpu()
    checks, said = run_kernels.kernels.checks, []

    def wrong(one: Check) -> Check:
        return replace(one, measure=lambda: 1.0) if one.name.endswith("several texts") else one

    monkeypatch.setattr(run_kernels.kernels, "checks", lambda *given: [wrong(one) for one in checks(*given)])
    assert for_learning(load_card(CARD), DENSE, said.append).learner.attention == "dot_product"
    (sentence,) = said
    assert "several texts" in sentence and 'learner.attention = "dot_product" takes its place' in sentence


def test_a_card_that_names_its_way_is_not_checked(gpu):
    made = gpu(attention=None)
    card = load_card(CARD, ['rollout.attention="loop"', 'learner.attention="dot_product"'])
    assert for_sampling(card, DENSE, None)[0] is card and for_learning(card, DENSE, None) is card and not made


def test_a_run_goes_on(gpu, tmp_path):
    """Its engine and its learner are those without the kernels."""
    gpu(attention=None)
    said: list[str] = []
    trainer = assemble(load_card(CARD), tmp_path, tell=said.append)
    assert trainer.world.cfg.rollout.attention == "loop" and trainer.learner.attention == "reference"
    assert [one for one in said if "does not work on this machine" in one] == said and len(said) == 2


NEWER = pytest.mark.skipif(
    int(jax.__version__.split(".")[1]) >= 12, reason="this JAX lowers Triton for GPUs that are there only"
)


@pytest.mark.parametrize("platform", ["tpu", pytest.param("cuda", marks=NEWER)])
def test_experts_without_kernels(platform):
    """The numbers and gradients of the loop, and no kernel in the program of a platform that has one."""
    sizes_X = jnp.array([3, 0, 13])
    x_JI, w_XIO = jax.random.normal(jax.random.key(0), (16, 128)), jax.random.normal(jax.random.key(1), (3, 128, 128))

    def gradients(kernels: bool):
        return jax.jit(jax.grad(lambda x, w: moe.grouped_matmul(x, w, sizes_X, kernels).sum() ** 2, (0, 1)))

    for ours, plain in zip(gradients(True)(x_JI, w_XIO), gradients(False)(x_JI, w_XIO), strict=True):
        assert (ours == plain).all()
    text = {
        kernels: gradients(kernels).trace(x_JI, w_XIO).lower(lowering_platforms=(platform,)).as_text()
        for kernels in (True, False)
    }
    kernel = {"tpu": "tpu_custom_call", "cuda": "triton"}[platform]
    assert kernel in text[True] and kernel not in text[False]
