"""A node's own meter against the counters of its GPUs."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.energy.accounting import DeviceLook
from airflow_provider_eaco.core.energy.node_energy import NodeEnergy


def test_the_host_is_what_the_node_takes_beside_its_gpus() -> None:
    """Node and GPUs are compared over the same time: one without a reading of the node counts for neither."""
    energy = NodeEnergy()
    energy.look(None, 100.0)
    assert energy.host_j is None
    energy.look(DeviceLook("n1", 0.0, 800.0), 200.0)
    energy.look(DeviceLook("n1", 0.0, 800.0), 500.0)
    energy.look(DeviceLook("n1", 10.0, 1000.0), 6200.0)
    assert (energy.node_j, energy.gpus_j, energy.seconds, energy.host_j) == (9000, 6000, 10, 3000)
    # Ten minutes without an answer: what was taken then is not guessed.
    energy.look(DeviceLook("n1", 610.0, 1000.0), 600_000.0)
    energy.look(DeviceLook("n1", 620.0, 1000.0), 606_000.0)
    assert (energy.node_j, energy.gpus_j, energy.seconds) == (19_000, 12_000, 20)
    assert energy.is_plausible


@pytest.mark.parametrize(("gpus_j", "plausible"), [(9_000, True), (10_400, True), (10_600, False)])
def test_gpus_that_take_more_than_the_node_are_not_believed(gpus_j: float, plausible: bool) -> None:
    """Beyond the error of two meters one of them is wrong, or of another machine."""
    energy = NodeEnergy()
    energy.look(DeviceLook("n1", 0.0, 1000.0), 0.0)
    energy.look(DeviceLook("n1", 10.0, 1000.0), gpus_j)
    assert energy.is_plausible is plausible
