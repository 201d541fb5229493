from collections.abc import Iterator

import pytest

from scope_jax.serving.assemble import Served
from tests.serving.world import atlas


@pytest.fixture(scope="session")
def model() -> Iterator[Served]:
    with atlas() as model:
        yield model
