"""A device without memory is a sentence with the phase and the keys to turn down, and no bug."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError
from typer.testing import CliRunner

from scope_jax.cli import app, program
from scope_jax.run.device_memory import DeviceMemoryError, is_exhausted, memory_of, out_of_memory
from scope_jax.run.performance import Phases

SAID = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 77309411328 bytes."


@pytest.fixture(scope="module")
def exhausted() -> Exception:
    """What XLA raises on this machine for an array of 4 PB."""
    with pytest.raises(JaxRuntimeError) as caught:
        jnp.zeros((1 << 50,), jnp.float32).block_until_ready()
    return caught.value


def test_xlas_own_error_is_known_by_its_code(exhausted: Exception) -> None:
    assert is_exhausted(exhausted) and not is_exhausted(JaxRuntimeError("INTERNAL: no"))
    assert not is_exhausted(ValueError(SAID))


@pytest.mark.parametrize(("phase", "key"), [("play", "rollout.slots"), ("learn", "learner.micro_batch_rows")])
def test_a_phase_says_which_keys_lower_it(phase: str, key: str) -> None:
    phases = Phases()
    with pytest.raises(DeviceMemoryError) as caught, phases.phase(phase, 3):
        raise JaxRuntimeError(SAID)
    sentence = str(caught.value)
    assert (
        f"ran out of memory in the phase '{phase}' as it asked for 77309411328 bytes more: turn down {key}" in sentence
    )
    assert "docs/plans.md#if-it-does-not-fit" in sentence and "\n" not in sentence
    assert phases.running is None and phases.seconds(phase) >= 0


def test_other_errors_of_xla_stay() -> None:
    with pytest.raises(JaxRuntimeError, match="INTERNAL"), memory_of("learn"):
        raise JaxRuntimeError("INTERNAL: no")


@pytest.mark.parametrize("error", [JaxRuntimeError(SAID), MemoryError()])
def test_outside_of_a_step_the_program_says_so(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> None:
        raise error

    monkeypatch.setattr(program.app, "registered_commands", [*program.app.registered_commands])
    program.app.command("exhaust")(shown)
    result = CliRunner().invoke(app, ["exhaust"])
    assert result.exit_code == 2 and "bug" not in result.stderr and "ran out of memory" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_sizes_are_read_in_all_the_forms_of_xla() -> None:
    for text, size in (
        ("RESOURCE_EXHAUSTED: Out of memory allocating 4503599627370496 bytes.", "4503599627370496 bytes"),
        ("RESOURCE_EXHAUSTED: Attempting to allocate 12.50G. That was not possible.", "12.50G"),
        ("RESOURCE_EXHAUSTED: No room.", ""),
        ("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 2.00GiB.", "2.00GiB"),
    ):
        said = str(out_of_memory(JaxRuntimeError(text)))
        assert (f"as it asked for {size} more" in said) if size else ("asked for" not in said)
