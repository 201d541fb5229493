"""The games by name: one literal dict."""

from scope_jax.systems import scope, ssp
from scope_jax.types import System

SYSTEMS: dict[str, System] = {"ssp": ssp, "scope": scope}
