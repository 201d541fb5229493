"""What the server that lives are forked from has imported."""

import scope_jax.cli
import scope_jax.report.page
import scope_jax.run.mirror
import scope_jax.train  # noqa: F401
