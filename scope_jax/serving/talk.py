"""A conversation in the terminal, with the model in this process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable

from scope_jax.rollouts.online import Done, News
from scope_jax.serving.assemble import Served
from scope_jax.serving.generating import chat_job, requests_of
from scope_jax.serving.protocol import ApiError, ChatBody, Message
from scope_jax.serving.replies import Choice

NEW, QUIT = "/new", "/quit"
# A model may write anything; what terminals take as commands is shown as a question mark.
_HARMLESS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def shown(text: str) -> str:
    """The text without control characters."""
    return text.translate(_HARMLESS)


def reply(model: Served, body: ChatBody, show: Callable[[str], None]) -> tuple[str, str]:
    """(the model's reply, its finish reason); `show` gets its text piece by piece. Raises ApiError for what cannot be
    answered."""
    job = chat_job(model, body)
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    (ticket,) = model.rollouts.submit(requests_of(model, job), [news.put])
    choice = Choice(model, job)
    try:
        while choice.finish is None:
            one = news.get()
            if isinstance(one, Done) and one.error is not None:
                raise ApiError(f"The reply failed: {one.error}", 503) from one.error
            show(shown(choice.take(one)[0]))
    finally:
        ticket.cancel()
    return choice.text, choice.finish


def talk(
    model: Served,
    lines: Iterable[str],
    show: Callable[[str], None],
    *,
    system: str | None,
    temperature: float,
    max_tokens: int | None,
    seed: int | None,
) -> None:
    """Answers each line as the next message of the conversation, until /quit or the last line; /new begins another.

    What cannot be answered is said and left out of the conversation.
    """
    start = [] if system is None else [Message(role="system", content=system)]
    messages = list(start)
    for line in lines:
        if line.strip() == QUIT:
            return
        if line.strip() == NEW:
            messages = list(start)
            continue
        if not line.strip():
            continue
        asked = [*messages, Message(role="user", content=line)]
        body = ChatBody(
            model=model.name,
            messages=asked,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            web_search_options=None if model.joiner is None else {},
        )
        try:
            text, finish = reply(model, body, show)
        except ApiError as error:
            show(f"[{error}]\n")
            continue
        show("\n[the reply was cut at its limit of tokens]\n" if finish == "length" else "\n")
        messages = [*asked, Message(role="assistant", content=text)]
