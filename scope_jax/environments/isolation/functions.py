"""Calls functions that a model has written, and compares values. Its text is sent to a worker, so it imports only the
standard library; nothing of it runs in the process of a run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json

UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # of text that is no literal


def outputs(program: str, name: str, inputs: list[str], repeats: int, longest: int) -> str:
    """JSON: for each input, the arguments of a call as text, the value of the program's function `name` as a literal.

    null: the program or the call raises, the input is not all literals, the value is none or has more than `longest`
    characters, or `repeats` calls differ. What the program prints is dropped.
    """
    values: list[str | None] = [None] * len(inputs)
    space: dict[str, object] = {"__name__": "program"}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for place, text in enumerate(["", *inputs]):
            try:
                if place == 0:
                    exec(compile(program, "<program>", "exec"), space)
                else:
                    values[place - 1] = value(space[name], text, repeats, longest)
            except BaseException:  # noqa: BLE001 - whatever a program raises, SystemExit too, is no value
                if place == 0:
                    break
    return json.dumps(values)


def value(function: object, text: str, repeats: int, longest: int) -> str | None:
    """The value of a call as a literal; None if it is not one, is too long, or differs. The arguments are read anew for
    each call, as a function may change them."""
    literals = []
    for _ in range(repeats):
        args, words = arguments(text)
        result = function(*args, **words)  # type: ignore[operator]
        literal = ascii(result)
        if len(literal) > longest or ast.literal_eval(literal) != result:
            return None
        literals.append(literal)
    return literals[0] if all(same(literal, literals[0]) for literal in literals) else None


def arguments(text: str) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call `f(text)`, literals. Raises ValueError or SyntaxError for other text."""
    call = ast.parse(f"f({text}\n)", mode="eval").body  # the new line ends a comment
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("these are not the arguments of one call")
    if any(word.arg is None for word in call.keywords):
        raise ValueError("** is no literal")
    words = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return [ast.literal_eval(argument) for argument in call.args], words


def same(one: str, other: str) -> bool:
    """Whether two texts are literals of equal values."""
    try:
        return bool(ast.literal_eval(one.strip()) == ast.literal_eval(other.strip()))
    except UNREADABLE:
        return False


def all_same(pairs: list[tuple[str, str]]) -> str:
    """JSON: `same` of each pair."""
    return json.dumps([same(*pair) for pair in pairs])
