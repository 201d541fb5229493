"""A small model and card for plans."""

from scope_jax.plan.hardware import Absent, Chip, Hardware
from scope_jax.run.assemble import assemble_learner
from scope_jax.run.meshes import card_mesh

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 512,
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
# q and o [256, 512], k and v [256, 256], gate, up and down [256, 512], norms of 256 and 128, twice each
LAYER = 2 * 256 * 512 + 2 * 256 * 256 + 3 * 256 * 512 + 2 * 256 + 2 * 128
WEIGHTS = 3 * LAYER + 2 * 512 * 256 + 256
CARD = "configs/ssp/atlas.toml"
SMALL = (
    "learner.buckets=[128, 256]",
    "learner.micro_batch_rows=8",
    "learner.remat=full",
    "learner.logprob_chunk=128",
    "rollout.max_length=256",
    "rollout.slots=16",
    'rollout.attention="loop"',
    'model.compute_dtype="bfloat16"',
)


def absent(count: int, gib: float) -> Hardware:
    """GPUs that are not here, with so much memory each."""
    return Hardware(
        f"{count}xH100",
        "gpu",
        Chip("H100", gib * 2**30, 989e12, 3350e9, 450e9, 50e9),
        [Absent(i, "gpu", "H100") for i in range(count)],
    )


def learner_of(cfg, model, on):
    return assemble_learner(cfg, model, card_mesh(cfg, on.devices))
