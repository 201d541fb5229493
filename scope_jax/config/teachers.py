"""The tables of teachers: models that rate the tokens of a policy."""

from __future__ import annotations

from pydantic import Field, model_validator

from scope_jax.config.base import Address, CardPath, Seconds, Section
from scope_jax.config.tables import EndpointSection, Tries


class TeacherSection(Section):
    """A model that rates tokens (`tools.score`, docs/distillation.md): a folder with weights, or an endpoint. It has
    the policies' vocabulary, which is checked; its architecture may be another one."""

    checkpoint: CardPath | None = None
    """Model folder with tokenizer, as `model.checkpoint`; its weights wait in host memory."""
    url: Address | None = None
    """Base URL of an endpoint that gives the log-probs of prompts (`/completions` with `echo`), as vLLM's. No keys,
    users or passwords: use `api_key_env`."""
    model: str | None = Field(default=None, min_length=1)
    """Name of the model there."""
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the API key."""
    timeout: Seconds = 600.0
    """Timeout of one request in seconds, from the first byte sent to the last received."""
    retries: Tries = 8
    """Retries before the run stops."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Requests at the same time."""

    @model_validator(mode="after")
    def _one_kind(self) -> TeacherSection:
        if (self.checkpoint is None) == (self.url is None):
            raise ValueError("a teacher needs either checkpoint, a folder with weights, or url and model; give one")
        if (self.url is None) != (self.model is None):
            raise ValueError("url and model of a teacher go together; give both, or checkpoint alone")
        if self.url is None and (unread := self.changed("api_key_env", "timeout", "retries", "concurrency")):
            raise ValueError(f"{unread[0]} is for a teacher with a url; remove it")
        return self

    @property
    def endpoint(self) -> EndpointSection | None:
        """None for a folder."""
        if self.url is None or self.model is None:
            return None
        return EndpointSection(
            url=self.url,
            model=self.model,
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            retries=self.retries,
            concurrency=self.concurrency,
        )
