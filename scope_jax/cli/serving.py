"""Commands that answer as long as they run: serve, search, chat."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_jax.cli.options import Card, Sets, TrustedHosts, load, trusted
from scope_jax.cli.output import WEIGHTS, check_folder, console, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError

if TYPE_CHECKING:
    from scope_jax.report.progress import Progress
    from scope_jax.serving.assemble import Served

LOOPBACK = ("127.0.0.1", "::1", "localhost")
Target = Annotated[
    Path,
    typer.Argument(metavar="CHECKPOINT_OR_RUN", help="Run folder, one of its checkpoints, or a Hugging Face folder."),
]
CardFile = Annotated[
    Path | None,
    typer.Option("--card", metavar="CARD", help="Card with engine, template and search [default: the run's, or none]."),
]
Policy = Annotated[
    str | None, typer.Option(metavar="NAME", help="Policy of a run with several [default: the one that answers exams].")
]
Search = Annotated[bool, typer.Option("--search", help="Let the model search, as the card's [retrieval] table says.")]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all, which needs a key.")]
KeyName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment variable with the key that clients must give."),
]
Grace = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.0, max=3600.0, help="Time for replies under way after SIGTERM.")
]


def _key(name: str | None, host: str) -> str | None:
    if name is None:
        if host not in LOOPBACK:
            raise UserError(
                f"--host {host} lets other machines ask; give a key with --api-key-env NAME, or listen on 127.0.0.1."
            )
        return None
    if not (key := os.environ.get(name, "").strip()):
        raise UserError(f"the environment variable {name} holds no key; set it, or leave out --api-key-env.")
    return key


@app.command()
def serve(
    target: Target,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of JetStream's gRPC service as well; 0: a free one."),
    ] = None,
    api_key_env: KeyName = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests [default: the folder's].")] = None,
    policy: Policy = None,
    card: CardFile = None,
    search: Search = False,
    grace: Grace = 30.0,
    trusted_host: TrustedHosts = None,
    set_: Sets = None,
) -> None:
    """Serve a model over OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics.

    Limits are in the card's [serve] table. SIGTERM lets replies under way finish (docs/operations.md#serving).
    """
    check_folder(target, WEIGHTS)
    key = _key(api_key_env, host)
    hosts = trusted(trusted_host)
    from scope_jax.serving.waiting import not_ready
    from scope_jax.web.connections import bound

    with ExitStack() as stack:
        sock = stack.enter_context(bound(host, port))  # a port that is taken is reported before the weights are loaded
        with not_ready(sock, hosts if hosts or key is None else None) as waiting:
            tell(f"listening on port {sock.getsockname()[1]}, with status 503 until the model is ready")
            from scope_jax.report.progress import Progress
            from scope_jax.run.programs import programs
            from scope_jax.serving.assemble import served
            from scope_jax.serving.server import run_model

            waiting.reason = lambda: programs().text() or "loading weights"
            with Progress(console()) as progress:
                options: dict[str, Any] = {"policy": policy, "search": search, "name": name, "grace": grace}
                model = stack.enter_context(served(target, card, set_ or [], tell=progress.say, **options))
                if not model.tokenizer.has_template:
                    tell("there is no chat template: only /v1/completions answers; for chats set model.chat_template")
                waiting.reason = lambda: programs().text() or "compiling"
                _compile(model, progress)
        grpc = None if grpc_port is None else (host, grpc_port)
        run_model(model, sock, key=key, grpc=grpc, grace=grace, tell=tell, hosts=hosts)
    tell("the server has ended")


@app.command("search")
def search_server(
    card: Card,
    host: Annotated[str, typer.Option(help="Address to listen on; there are no keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8001,
    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the index [default: retrieval.index of the card].")
    ] = None,
    trusted_host: TrustedHosts = None,
    grace: Grace = 10.0,
    set_: Sets = None,
) -> None:
    """Serve the search of CARD over Search-R1's protocol, POST /retrieve, for runs with retrieval.url."""
    cfg = load(card, set_)
    if (retrieval := cfg.retrieval) is None or retrieval.corpus is None:
        raise UserError(f"{card} has no corpus to search; add retrieval.corpus or pass --set retrieval.corpus=FILE.")
    folder = index or (Path(retrieval.index) if retrieval.index else None)
    hosts = trusted(trusted_host)
    if folder is None:
        raise UserError(f"{card} has no index folder; give one with --index DIR, where the index is kept or built.")
    from scope_jax.report.progress import Progress
    from scope_jax.retrieval.server import TOPK_LIMIT, make_app
    from scope_jax.run.fetching import fetched
    from scope_jax.run.indexing import index_mesh, open_or_build_index
    from scope_jax.serving.server import run_http
    from scope_jax.web.connections import bound

    with bound(host, port) as sock:  # a port that is taken is reported before the index is opened
        retrieval = fetched(cfg, tell, only=("retrieval",)).retrieval
        assert retrieval is not None
        with Progress(console()) as progress:
            kept = retrieval.model_copy(update={"index": str(folder)})
            retriever = open_or_build_index(kept, folder, index_mesh(), progress.part, say=progress.say)
        passages = len(retriever.corpus)
        tell("compiling")
        retriever.compile(TOPK_LIMIT)
        service = make_app(retriever, top_k=retrieval.top_k, hosts=[host, *hosts])
        where = f"searching {passages} passages on"
        run_http(service, sock, grace, lambda address: tell(f"{where} {address}/retrieve"), service.state.calls.close)
    tell("the server has ended")


@app.command()
def chat(
    target: Target,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="At most this many tokens per reply [default: serve.max_tokens].")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of the replies [default: a new one each time]."),
    ] = None,
    policy: Policy = None,
    card: CardFile = None,
    search: Search = False,
    set_: Sets = None,
) -> None:
    """Talk to a model in the terminal. /new begins a new conversation, /quit or Ctrl-D ends."""
    check_folder(target, WEIGHTS)
    from rich.console import Console

    from scope_jax.report.progress import Progress
    from scope_jax.serving.assemble import served
    from scope_jax.serving.talk import talk

    screen = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with ExitStack() as stack:
        with Progress(console()) as progress:
            options: dict[str, Any] = {"policy": policy, "search": search, "name": None, "grace": 0.0, "chats": True}
            model = stack.enter_context(served(target, card, set_ or [], tell=progress.say, **options))
            _compile(model, progress, alone=True)
        talk(
            model,
            _lines(screen.is_terminal and sys.stdin.isatty()),
            lambda text: screen.print(text, end=""),
            system=system,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )


def _compile(model: Served, progress: Progress, alone: bool = False) -> None:
    """Compiles the programs for requests, or for one at a time, and says which of how many."""
    from scope_jax.run.programs import programs
    from scope_jax.serving.server import warm_up

    progress.say("compiling")
    progress.follow(programs().text)
    warm_up(model, alone)


def _lines(prompted: bool) -> Iterator[str]:
    while True:
        try:
            yield input("> " if prompted else "")
        except EOFError:
            return
