"""What a turn calls: one reader for rollouts, `serve`, exams of models behind endpoints, and programs of agents.

`read` finds the calls of a text and compares them with the schemas of their functions; `native` does that for calls
that an endpoint has read already. What differs between the users is a function over the result: which calls are run
here, and what is answered (`play.tool_turns`), or what somebody else gets who runs them (`delivered`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import NoneType
from typing import Any, Literal

from scope_jax.rollouts.thoughts import Marks, blanked, thoughts
from scope_jax.text import schemas
from scope_jax.text.dialects import Call, Dialect
from scope_jax.text.dialects.formats import LONGEST, malformed
from scope_jax.text.dialects.values import Malformed, arguments, json_of
from scope_jax.text.parsing import shorten
from scope_jax.text.schemas import Schema
from scope_jax.text.validation import STEPS, budget

Check = Literal["all", "named", "none"]
"""How the arguments of a function are compared with its schema: all of them; those that it names, and the others are
left out; or not at all."""


def visible(text: str, thought: Marks | None, opened: bool) -> str:
    """The text of a turn with thinking, in which nothing is called, replaced by spaces. thought: its marks, None if it
    counts as any text. opened: the prompt has opened it."""
    return text if thought is None else blanked(text, thoughts(text, thought, opened))


@budget(STEPS)  # for all arguments of a turn
def read(text: str, dialect: Dialect, tools: Sequence[Schema], checks: Mapping[str, Check] | None = None) -> list[Call]:
    """Every call of a text without thinking, in order: valid, or with what is wrong as its `error`.

    tools: the schemas of the functions. checks: by function, where not all arguments are checked. Takes time linear in
    the text, and raises nothing.
    """
    return _checked(dialect.read(text, tools), tools, checks)


@budget(STEPS)
def native(
    given: Sequence[Mapping[str, str]],
    tools: Sequence[Schema],
    checks: Mapping[str, Check] | None = None,
    start: int = 0,
) -> list[Call]:
    """The same of calls that an endpoint has read: of each the name and the arguments as JSON, blank for none.

    start: where the text ends that they follow; each call is a place of its own behind it.
    """
    found = []
    for place, function in enumerate(given, start):
        try:
            taken = arguments(function["arguments"]) if function["arguments"].strip() else {}
            found.append(Call(function["name"], taken, "", place, place, place, place))
        except Malformed as error:
            found.append(malformed(str(error), place, place, function["name"]))
    return _checked(found, tools, checks)


def _checked(found: Sequence[Call], tools: Sequence[Schema], checks: Mapping[str, Check] | None) -> list[Call]:
    return [_compared(call, tools, (checks or {}).get(call.name, "all")) if call.valid else call for call in found]


def _compared(call: Call, tools: Sequence[Schema], check: Check) -> Call:
    """A readable call, with what is wrong with its arguments."""
    if check == "named":
        known = schemas.arguments_of(schemas.parameters_of(tools)[call.name])
        call = replace(call, arguments={name: value for name, value in call.arguments.items() if name in known})
    return call if check == "none" else replace(call, error=refusal(call.name, call.arguments, tools))


# ------------------------------------------------------------------------------------------- functions of somebody else
def checks_of(tools: Sequence[Schema]) -> dict[str, Check]:
    """The checks for functions of a client, who takes any arguments unless a function is `strict`."""
    functions = map(schemas.function_of, tools)
    return {function["name"]: "all" if function.get("strict") else "none" for function in functions}


def delivered(text: str, found: Sequence[Call], single: bool = False) -> tuple[str, list[Call]]:
    """(content, calls) of a turn for a client who runs the calls: the text without them, and the valid ones.

    text: with thinking or without, in which the places are those of `found`. A pair of tags in which a call is not
    valid is content. What follows a call begins on a line of its own. single: one call at most, which ends the turn.
    """
    pieces: list[str] = []
    calls: list[Call] = []
    last = 0
    for (opened, closed), inside in groupby(found, lambda call: (call.opened, call.closed)):
        group = list(inside)
        if not all(call.valid for call in group):
            continue
        pieces.append(text[last:opened].strip() if calls else text[:opened].rstrip())
        calls += group
        last = closed
        if single:
            return pieces[0], calls[:1]
    pieces.append(text[last:].strip() if calls else text)
    return "\n".join(filter(None, pieces)), calls


# -------------------------------------------------------------------------------------------------------- what is wrong
def refusal(name: str, given: Mapping[str, Any], tools: Sequence[Schema]) -> str:
    """Why a call cannot be run, as a sentence for the policy; "" if its function takes these arguments as they are.

    Nothing is converted: "5" is no number, 5.0 no integer. An argument that the schema does not name is refused, unless
    it says that it takes others.
    """
    functions = schemas.parameters_of(tools)
    if name not in functions:
        return _sentence(f"there is no tool {json_of(name[:80])}; there is {', '.join(functions) or 'none'}")
    parameters = functions[name]
    taken = schemas.arguments_of(parameters)
    takes = f"it takes {', '.join(taken)}" if taken else "it takes none"
    others = parameters.get("additionalProperties", False) is not False or "patternProperties" in parameters
    if surplus := [one for one in given if one not in taken and not others]:
        return _sentence(f"{name} has no argument {json_of(surplus[0][:80])}; {takes}")
    if missing := [one for one in parameters.get("required", ()) if one not in given]:
        return _sentence(f"{name} needs the argument {json_of(missing[0])}; {takes}")
    wrong = schemas.fault(given, parameters)
    if wrong is None:
        return ""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in wrong.absolute_path)[1:]
    if wrong.validator == "type":
        one_or_more: Any = wrong.validator_value
        kinds = [one_or_more] if isinstance(one_or_more, str) else one_or_more
        reason = f"must be {' or '.join(kinds)}, not {_kind(wrong.instance)}"
    else:
        reason = f"is wrong: {wrong.message}"
    return _sentence(f"the argument {json_of(place[:80])} of {name} {reason}")


def _sentence(text: str) -> str:
    return shorten(f"error: {text}", LONGEST)


def _kind(value: Any) -> str:
    """A value for a sentence, with the name of its JSON type."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array"}
    name = next((name for kind, name in kinds.items() if isinstance(value, kind)), "object")
    shown = "" if isinstance(value, (list, dict, NoneType)) else f" {shorten(json_of(value), 40)}"
    return f"the {name}{shown}"
