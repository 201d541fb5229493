"""What tests import that is not ours, for a process from which those of tests are forked."""

from __future__ import annotations

import contextlib

import beartype  # noqa: F401
import datasets  # noqa: F401
import flax.struct  # noqa: F401
import httpx  # noqa: F401
import hypothesis  # noqa: F401
import jax
import jax.experimental.pallas
import jax.experimental.shard_map
import jax.numpy  # noqa: F401
import jaxtyping  # noqa: F401
import jinja2  # noqa: F401
import jsonschema  # noqa: F401
import numpy  # noqa: F401
import optax  # noqa: F401
import orbax.checkpoint  # noqa: F401
import pyarrow  # noqa: F401
import pydantic  # noqa: F401
import rich.console  # noqa: F401
import safetensors.numpy  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.cluster  # noqa: F401
import starlette.applications  # noqa: F401
import sympy  # noqa: F401
import tensorstore  # noqa: F401
import tokenizers  # noqa: F401
import tomlkit  # noqa: F401
import transformers  # noqa: F401
import typer
import typer.testing  # noqa: F401
import uvicorn  # noqa: F401

with contextlib.suppress(ImportError):
    import torch  # noqa: F401
