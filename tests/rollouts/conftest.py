import pytest

from tests.rollouts import world


@pytest.fixture(scope="session")
def params():
    return world.make_params()


@pytest.fixture(scope="session")
def engine():
    return world.make_engine()


@pytest.fixture(scope="session")
def rollouts(engine, params):
    return world.make_rollouts(engine, params)
