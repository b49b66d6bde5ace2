"""The garbage collector belongs to the whole process: a simulation borrows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from airflow_provider_eaco.simulator.collecting import rare_collections


@pytest.fixture(autouse=True)
def _own_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_rarely_and_only_meanwhile() -> None:
    """Young objects are looked at rarely while the block runs, and as before once it has failed."""

    def fail_inside() -> None:
        with rare_collections():
            assert gc.get_threshold()[0] > 700
            assert gc.get_threshold()[1:] == (10, 10)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("young", [0, 1_000_000], ids=["off", "rarer"])
def test_who_collects_less_keeps_it_so(young: int) -> None:
    """A process that collects more rarely still, or never, is left alone."""
    gc.set_threshold(young, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (young, 10, 10)
