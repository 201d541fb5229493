"""The games by name: one literal dict."""

from scope_jax.play.system import System
from scope_jax.systems import scope, ssp

SYSTEMS: dict[str, System] = {"ssp": ssp, "scope": scope}
