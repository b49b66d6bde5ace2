"""The truth of compute-bound jobs: Gavel's pairs, their power, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.simulator.trace import TraceError
from airflow_provider_eaco.simulator.truth import GavelTruth, read_gavel_truth
from tests.unit.simulator.benchmark_data import benchmark_data


@pytest.fixture(scope="module")
def gavel() -> GavelTruth:
    return read_gavel_truth(benchmark_data("gavel_throughputs/pairs.csv"), 4)


def test_families_are_sorted_by_model_and_batch(gavel: GavelTruth) -> None:
    """26 families; batches sort as numbers, and none is 0."""
    assert len(gavel.families) == 26
    assert gavel.families[:4] == ("A3C:", "CycleGAN:", "LM:5", "LM:10")


def test_a_pair_that_ran_out_of_memory_does_not_run(gavel: GavelTruth) -> None:
    """328 of the 351 pairs ran; the others have none, nor have three jobs, nor pairs on two GPUs."""
    pairs = [family_set((a, b)) for number, a in enumerate(gavel.families) for b in gavel.families[number:]]
    assert len(pairs) == 351
    assert sum(gavel.performance(pair, 1) is not None for pair in pairs) == 328
    assert gavel.performance(family_set(("A3C:", "ResNet-50:128")), 1) is None
    assert gavel.performance(family_set(("A3C:", "A3C:", "A3C:")), 1) is None
    assert gavel.performance(family_set(("A3C:", "A3C:")), 2) is None


def test_power_of_a_pair_follows_its_speeds(gavel: GavelTruth) -> None:
    """Each member draws its dynamic power times its speed; the board is capped at 250 W."""
    one = gavel.performance(family_set(("A3C:", "LM:5")), 1)
    assert one is not None
    a3c, lm = one.rates
    assert one.power_w == pytest.approx(min(250.0, 30 + 60 * a3c + 150 * lm))
    twins = gavel.performance(family_set(("LM:5", "LM:5")), 1)
    assert twins is not None
    assert twins.rates[0] == twins.rates[1]
    largest = gavel.performance(family_set(("ResNet-50:16", "ResNet-50:16")), 1)
    assert largest is not None
    assert largest.power_w <= 250.0


def test_an_idle_node_draws_as_the_paper_measured(gavel: GavelTruth) -> None:
    """A node of four: 4 x 49 W."""
    assert gavel.base_w + 4 * gavel.free_gpu_w == pytest.approx(196.0)


@pytest.mark.parametrize("text", ["", "table,gpu\nmotivation,v100\n"])
def test_another_table_is_refused(tmp_path: Path, text: str) -> None:
    """A file that is not the table of pairs is one clear message."""
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match="not Gavel's table"):
        read_gavel_truth(path, 4)
