"""What the server tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from scope_jax.serving.assemble import Served

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Counters:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, model: Served) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "scope_jax_requests", "Requests by path and HTTP status", ["path", "status"], registry=self.registry
        )
        self.cancelled = Counter(
            "scope_jax_requests_cancelled", "Requests whose client went away", registry=self.registry
        )
        self.prompt = Counter("scope_jax_prompt_tokens", "Tokens of prompts", registry=self.registry)
        self.sampled = Counter("scope_jax_sampled_tokens", "Sampled tokens", registry=self.registry)
        self.first = Histogram(
            "scope_jax_first_token_seconds",
            "Time to the first token of a streamed reply",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.seconds = Histogram(
            "scope_jax_request_seconds", "Time to the end of a reply", buckets=SECONDS, registry=self.registry
        )
        rollouts = model.rollouts
        for name, text, value in (
            ("slots", "Samples that can be generated at a time", lambda: rollouts.engine.config.slots),
            ("samples_running", "Slots in use", lambda: rollouts.running),
            ("samples_waiting", "Samples that wait for a slot", lambda: rollouts.waiting),
        ):
            Gauge(f"scope_jax_{name}", text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
