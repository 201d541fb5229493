"""The rules on a card that need no more than its game, the model's config.json and the tokenizer."""

from __future__ import annotations

from typing import Any

from scope_jax.errors import UserError
from scope_jax.learner.programs import context_attention
from scope_jax.models.decoder.adapter import adapted
from scope_jax.models.decoder.transformer import check_tensor
from scope_jax.play import exams
from scope_jax.play.tool_responder import check_answered
from scope_jax.play.tools import BASE
from scope_jax.rollouts.slots import STOP_IDS
from scope_jax.run.opened import Doubt, OpenedCard, OpenedModel


# ------------------------------------------------------------------------------------------------------------ the card
def game(opened: OpenedCard) -> str:
    """Reads the table of a game of one's own, too."""
    opened.game.updates(opened.cfg)
    return f"{opened.cfg.system}, which trains {', '.join(opened.game.policies(opened.cfg))}"


def policies(opened: OpenedCard) -> None:
    trained = opened.game.policies(opened.cfg)
    for name in opened.cfg.model.policies:
        if name not in trained:
            raise UserError(f"model.policies names {name!r}, but the card trains {', '.join(trained)}; correct it.")


def teacher_names(opened: OpenedCard) -> None:
    for name in opened.cfg.teachers:
        if name in (*opened.game.policies(opened.cfg), BASE):
            raise UserError(f"[teachers.{name}] has the name of a policy; choose another one.")


def quantization(opened: OpenedCard) -> None:
    """Losses correct for what samples in 8 bits."""
    keys = [f"rollout.{name}" for name in ("quantization", "kv_cache_dtype") if vars(opened.cfg.rollout)[name]]
    key = " and ".join(keys)
    for update in opened.game.updates(opened.cfg) if keys else ():
        if update.card.objective != "policy":
            raise UserError(
                f"{key} {'are' if len(keys) > 1 else 'is'} about rollouts, but {opened.cfg.system} trains on given "
                "texts; remove it."
            )
        if not update.card.corrects_rollout and update.card.old_logprobs == "learner":
            raise UserError(
                f"with {key} the episodes of {update.name} come from other weights than it trains, but its loss does "
                "not correct for that; set rollout_cap there, for example to 2.0, or rollout_mask, or old_logprobs = "
                '"rollout".'
            )


def ahead(opened: OpenedCard) -> None:
    """Losses of steps that are played ahead allow that."""
    for update in opened.game.updates(opened.cfg) if opened.cfg.train.one_step_off_policy else ():
        card = update.card
        if card.objective == "policy" and not card.rollout_cap and card.old_logprobs == "learner":
            raise UserError(
                f"with train.one_step_off_policy the episodes of {update.name} come from older weights, but its loss "
                "does not correct for that; set rollout_cap there, for example to 2.0."
            )


def overlapping(opened: OpenedCard) -> None:
    """Steps that overlap sample with one set of weights, are of a game that allows it, and are learned with a loss that
    corrects for older weights."""
    cfg, game = opened.cfg, opened.game
    if not cfg.train.max_staleness:
        return
    key = "train.max_staleness"
    updates = [update for update in game.updates(cfg) if update.card.objective == "policy"]
    if not updates:
        raise UserError(f"{key} is about rollouts, but {cfg.system} trains on given texts; remove it.")
    if not game.overlaps:
        raise UserError(
            f"{key} lets steps overlap, but a step of {game.title} follows from all of the one before; remove it."
        )
    if cfg.model.adapter is None and len(models := game.sampled(cfg)) > 1:
        raise UserError(
            f"{key} lets steps overlap on one engine with one set of weights, but {game.title} samples with those of "
            f"{', '.join(models)}; make them adapters ([model.adapter]), or remove it."
        )
    if teachers := [name for name, teacher in cfg.teachers.items() if teacher.checkpoint is not None]:
        raise UserError(
            f"{key} lets a step be played while others use the devices, which teachers with weights of their own "
            f"([teachers.{teachers[0]}]) need too; serve it and give its endpoint, or remove {key}."
        )
    for update in updates:
        card = update.card
        if not card.corrects_rollout and card.old_logprobs == "learner":
            raise UserError(
                f"with {key} the episodes of {update.name} come from older weights, but its loss does not correct for "
                'that; set rollout_cap there, for example to 2.0, or rollout_mask, or old_logprobs = "rollout".'
            )


def replay(opened: OpenedCard) -> None:
    """Experts are replayed of what was sampled."""
    updates = opened.game.updates(opened.cfg)
    if opened.cfg.learner.router_replay and all(update.card.objective != "policy" for update in updates):
        raise UserError(
            f"learner.router_replay is about experts that the engine picked, but {opened.cfg.system} trains on given "
            "texts; turn it off."
        )


def measures(opened: OpenedCard) -> None:
    """Exams have what their measures need."""
    for one in opened.cfg.evaluate.sets:
        exams.measures_of(opened.exam, one)
    exams.max_turns_of(opened.cfg, opened.exam)
    _ = opened.judges


def calls(opened: OpenedCard) -> None:
    """Every role reads what its tools return, whenever it speaks."""
    for role in opened.game.roles(opened.cfg):
        if role.external is None:
            check_answered(role.name, role.agent, opened.cfg.model.turns)


def reference(opened: OpenedCard) -> None:
    """The base is not sampled in a run in which another reference takes its place."""
    cfg, game = opened.cfg, opened.game
    sampled = game.uses_base(cfg) or exams.uses_base(cfg, opened.exam)
    if sampled and game.new_reference(cfg, game.start(cfg)) is not None:
        raise UserError(
            f"the base grades exams of this card, but {game.title} replaces it as reference; give [evaluate.grader] an "
            "endpoint, or keep the base as reference."
        )


# ----------------------------------------------------------------------------------------------------------- the model
def positions(opened: OpenedCard) -> None:
    """Episodes are not longer than what the model is for."""
    length, most = opened.cfg.engine_length, opened.model.max_positions
    if length > most:
        key = "rollout" if opened.cfg.rollout.max_length == length else "evaluate"
        raise UserError(
            f"{key}.max_length is {length:,}, but the model in {opened.folder} is for {most:,} tokens "
            "(max_position_embeddings of its config.json); lower it."
        )


def mesh(opened: OpenedCard) -> None:
    """The groups of learner and engine divide the model; a size of -1 follows from the devices."""
    cfg, model = opened.cfg, opened.model
    if cfg.mesh.tensor > 0:
        check_tensor(model, cfg.mesh.tensor)
        if cfg.mesh.context > 0:
            context_attention(cfg.learner, model, cfg.mesh.tensor, cfg.mesh.context)
    if cfg.rollout.mesh is not None and cfg.rollout.mesh.tensor > 0:
        check_tensor(model, cfg.rollout.mesh.tensor, "rollout.mesh")


def adapter(opened: OpenedCard) -> None:
    """The model has what adapters are to adapt."""
    if opened.cfg.model.adapter is not None:
        adapted(opened.model, opened.cfg.model.adapter.targets)


# ------------------------------------------------------------------------------------------------------- the tokenizer
def vocabulary(opened: OpenedModel) -> None:
    """The model has an embedding of each token."""
    tokenizer, model = opened.tokenizer, opened.model
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens but the model in {opened.folder} has only "
            f"{model.vocab_size} embeddings; use the model's own tokenizer."
        )


def template(opened: OpenedModel) -> str:
    """The chat template, with the card's options, renders a question with its text."""
    options: dict[str, Any] = dict(opened.cfg.model.chat_template_kwargs)
    one, other = (opened.tokenizer.encode_chat([{"role": "user", "content": text}], **options) for text in ("?", "? ?"))
    if one == other:
        raise UserError(
            "the chat template does not show what the user says, so that all prompts would be alike; correct it, or "
            "set model.chat_template to the model's own."
        )
    return f"{opened.tokenizer.vocab_size} tokens"


def ends(opened: OpenedModel) -> str:
    """The tokens and strings that end a reply, with who names them; a `Doubt` if the chat template ends a message with
    none of them."""
    card, tokenizer = opened.cfg.model, opened.tokenizer
    if len(tokenizer.eos_ids) > STOP_IDS:
        raise UserError(
            f"{len(tokenizer.eos_ids)} tokens end a reply, and the engine takes at most {STOP_IDS}; remove some from "
            f"eos_token_id in the generation_config.json of {opened.folder}."
        )
    named = ", ".join(f"{end.name} ({', '.join(end.sources)})" for end in tokenizer.ends)
    if card.stop:
        return f"{named}, {', '.join(map(repr, card.stop))} (model.stop)"
    end = tokenizer.template_end
    if not tokenizer.has_template or (end is not None and end.id is not None):
        return named
    writes = "does not show how it ends a reply" if end is None else f"ends a reply with the text {end.text[:40]!r}"
    return Doubt(
        f"the chat template {writes}, not with a token of the tokenizer; replies end with {named}, and run to their "
        "limit if the model does not write it; set model.stop to what the model writes after a reply."
    )
