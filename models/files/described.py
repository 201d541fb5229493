"""The page of model families (families.md of the site), from `models.files.families`; `tools/site.py` writes it."""

from __future__ import annotations

from scope_jax.models.files.families import FAMILIES, Family

HEAD = (
    "architecture",
    "class in config.json",
    "norms",
    "queries and keys",
    "biases",
    "windows",
    "other layers",
    "positions",
    "feed-forward",
)
NORMS = {"pre": "before", "post": "after", "both": "before and after"}
QK_NORM = {"none": "", "head": "RMSNorm of each head", "width": "RMSNorm of the whole projection"}
BIAS = {"config": "`attention_bias`: q, k, v, o", "qkv": "q, k, v", "none": "none"}
WINDOWS = {
    "none": "none",
    "types": "`layer_types`, or layers from `max_window_layers` on",
    "all": "all layers or none",
    "stated": "all layers, unless `sliding_window` is null",
}
ROPES = {
    "one": "the same in all layers",
    "windows": "sliding layers have their own",
    "listed": "layers of `no_rope_layers`",
    "optional": "none without `rope_theta`",
}
FEED = {"silu": "SwiGLU", "gelu_tanh": "GeGLU"}


def page() -> str:
    """The page in Markdown."""
    return f"# Families\n\n[Models](models.md#families) says which published models these are.\n\n{table()}\n"


def table() -> str:
    """The table in Markdown, a row for each family."""
    rows = [HEAD, ("---",) * len(HEAD), *(_row(name, family) for name, family in FAMILIES.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, family: Family) -> tuple[str, ...]:
    norms = NORMS[family.norms] + (", × (1 + w)" if family.norm_offset else "")
    heads = [
        QK_NORM[family.qk_norm] + (", and of values" if family.gemma == 4 else ""),
        "queries grow with the position" * family.query_scaling,
        "a sink for each head" * family.sinks,
        "a gate" * family.gate,
    ]
    windows = WINDOWS.get(family.windows) or f"`layer_types`, or {family.period - 1} of {family.period} layers"
    positions = ROPES[family.ropes] + (", a share of a head" if family.partial else "")
    feed = FEED[family.activation]
    if family.experts:
        feed = "clamped experts with biases" if family.clamped else f"{feed} experts"
    feed += ", one shared" if family.shared else ""
    feed += ", with `enable_moe_block` beside experts; a vector per layer" if name == "gemma4_text" else ""
    return (
        f"`{name}`",
        f"`{family.hf}`",
        norms,
        ", ".join(filter(None, heads)) or "unchanged",
        BIAS[family.bias],
        windows,
        _others(family),
        positions,
        feed,
    )


def _others(family: Family) -> str:
    if family.gemma == 4:
        return "the last `num_kv_shared_layers` attend to keys of earlier ones"
    return "none" if family.delta == "none" else "Gated DeltaNet, by `layer_types`"
