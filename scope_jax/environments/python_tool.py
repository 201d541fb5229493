"""The `python` tool: a policy runs code, in a process of its own or on a SandboxFusion server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scope_jax.config import Config, SandboxSection
from scope_jax.environments.fusion import Fusion, FusionSession
from scope_jax.environments.sandbox import Sandbox, Session
from scope_jax.play.tool_calls import Tool

LONGEST_WAIT = 600.0  # seconds that a call may wait for others, beside its own


def python_service(
    card: Config | SandboxSection, hidden: Sequence[Path] = (), tell: Callable[[str], None] | None = None
) -> Sandbox | Fusion:
    """Where code runs, for one or several tools, by a card or its `[sandbox]`; see `Sandbox` for the arguments."""
    section = card.sandbox if isinstance(card, Config) else card
    return Sandbox(section, hidden, tell) if section.endpoint is None else Fusion(section)


def python_tool(
    card: Config | SandboxSection,
    *,
    session: bool = True,
    name: str = "python",
    service: Sandbox | Fusion | None = None,
    max_output_tokens: int = 2048,
) -> Tool:
    """The tool, with the argument `code`. A result is what the code prints, and the value of its last expression.

    card: a card or its `[sandbox]`. session: variables live through an episode; False: each call starts afresh.
    service: shared with other tools, of the same section; None: one of its own.
    """
    section = card.sandbox if isinstance(card, Config) else card
    service = service or python_service(section)
    kept = "Variables, functions and imports stay for later calls." if session else "Each call starts afresh."
    if session or section.endpoint is None:
        shown = "Returns what it prints and the value of its last expression."
    else:
        shown = "Returns what it prints."
    about = f"Runs Python code. {shown} {kept} numpy and sympy are there; there is no network. A call may take "
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{about}{section.seconds:g} seconds.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The code to run."}},
                "required": ["code"],
                "additionalProperties": False,
            },
        },
    }

    def in_session(state: Session | FusionSession, code: str) -> str:
        return state.run(code)

    def alone(code: str) -> str:
        return service.run(code)

    return Tool(
        name,
        in_session if session else alone,
        schema,
        open=(lambda rng: service.session()) if session else None,
        seconds=section.seconds + LONGEST_WAIT,
        max_output_tokens=max_output_tokens,
        service=service,
    )
