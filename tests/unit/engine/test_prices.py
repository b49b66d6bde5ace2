"""Energy prices: when they are solved, what they mean, and what a pool has spent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_provider_eaco.core.energy.configuration import (
    ConfigurationProgram,
    ConfigurationSolution,
    JobClass,
    SetPerformance,
    configuration_program,
)
from airflow_provider_eaco.core.energy.greedy_prices import greedy_prices
from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolSettings, Prices
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, Resident
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.engine.prices import SOLVE_EVERY_S, EnergyPricing
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from tests.builders import NOW_S, hold_gpus, make_job, make_node, make_progress, make_resident, make_snapshot

LP = PoolSettings(policy="frontier", mean_stretch=1.05)
GREEDY = replace(LP, prices=Prices.GREEDY)


class CountingSolver:
    """The real solver, with how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def solve(
        self, program: ConfigurationProgram, mean_stretch: float | None = None, class_limits: bool = False
    ) -> ConfigurationSolution:
        self.asked += 1
        return HighsEnergySolver().solve(program, mean_stretch, class_limits)


def pool(settings: PoolSettings, *families: str, now_s: float = NOW_S) -> ClusterSnapshot:
    """A pool in which a job of each family runs alone."""
    nodes = [
        hold_gpus(
            make_node(f"node-{family}"),
            make_resident(
                make_job(f"job-{family}", family, progress=make_progress(10, 40, unit_s=1404.0)),
                granted_s=NOW_S - 10 * 1404.0,
            ),
        )
        for family in families
    ]
    return make_snapshot(*nodes, settings=settings, now_s=now_s)


def program(*families: str) -> ConfigurationProgram:
    """The program of equal work of the families, each without a limit."""
    book = built_in_book()

    def performance(members: tuple[str, ...]) -> tuple[SetPerformance, ...]:
        seen = predict(members, "V100", 8, book, 0.0)
        assert seen is not None
        assert seen.power_w is not None
        return (SetPerformance(seen.power_w, tuple(1 / seen.slowdowns[name] for name in members)),)

    return configuration_program([JobClass(name, None, 1.0) for name in families], performance, 3)


@pytest.mark.parametrize("limit", [1.02, 1.05, 1.2])
def test_under_the_solvers_prices_no_set_loses_less_than_nothing(limit: float) -> None:
    """Every set costs at least the price of its work, and those that are used cost exactly that."""
    made = program("J1", "J2", "J3", "J4")
    solution = HighsEnergySolver().solve(made, limit)
    loss_w = made.power_w + solution.presence_w @ made.presence - solution.price_w @ made.progress
    assert loss_w.min() > -1e-6
    assert np.abs(loss_w[solution.time_s > 1e-9]).max() < 1e-6


@pytest.mark.parametrize("limit", [1.02, 1.05, 1.2])
def test_greedy_prices_leave_no_set_below_its_price(limit: float) -> None:
    """Without a solver, too, no set costs less than the price of its work, and each has one near it."""
    made = program("J1", "J2", "J3", "J4")
    price_w, stretch_w = greedy_prices(made, limit)
    loss_w = made.power_w + stretch_w * made.presence.sum(axis=0) - price_w @ made.progress
    assert loss_w.min() > -0.01
    nearest_w = np.array([loss_w[made.presence[number] > 0].min() for number in range(4)])
    assert nearest_w.max() < 100


def test_prices_are_solved_once_a_minute_at_most_and_only_for_another_mix() -> None:
    """Within a minute they stand; later they are solved anew if other jobs have come."""
    solver = CountingSolver()
    pricing = EnergyPricing(solver)
    first = pricing.of(pool(LP, "J1", "J4"))
    assert pricing.of(pool(LP, "J1", "J2", "J4", now_s=NOW_S + SOLVE_EVERY_S - 1)) is first
    same = pricing.of(pool(LP, "J1", "J4", now_s=NOW_S + SOLVE_EVERY_S))
    assert (same.classes, solver.asked) == (first.classes, 1)
    pricing.of(pool(LP, "J2", "J3", now_s=NOW_S + 2 * SOLVE_EVERY_S))
    assert solver.asked == 2


def test_who_has_ended_counts_in_what_the_pool_has_spent() -> None:
    """A job that is gone at the next look has ended, with its work and the time that it took."""
    pricing = EnergyPricing(HighsEnergySolver())
    assert pricing.of(pool(LP, "J1", "J4")).ended_work_s == 0
    later = pricing.of(pool(LP, "J4", now_s=NOW_S + 2 * SOLVE_EVERY_S))
    assert later.ended_work_s == pytest.approx(40 * 1404.0, rel=0.1)
    assert later.ended_run_s > 0


@pytest.mark.parametrize(
    ("units", "all_s"), [(11, 11 * 1404.0), (40, 10 * 1404.0 + 1800)], ids=["told", "early"]
)
def test_who_ends_before_it_can_have_done_what_it_told_counts_with_what_it_did(
    units: int, all_s: float
) -> None:
    """Half an hour after its tenth unit the eleventh may be done, and thirty more cannot be."""
    first = pool(LP, "J1", "J4")
    nodes = {
        name: hold_gpus(make_node(name), _reporting(state.sets[0].residents[0], units))
        for name, state in first.nodes.items()
    }
    pricing = EnergyPricing(HighsEnergySolver())
    pricing.of(replace(first, nodes=nodes))
    later = pricing.of(pool(LP, "J4", now_s=NOW_S + 1800))
    assert later.ended_work_s == pytest.approx(all_s, rel=0.01)


def _reporting(resident: Resident, units: int) -> Resident:
    progress = make_progress(10, units, unit_s=1404.0, solo_unit_s=1404.0, reported_s=NOW_S)
    return replace(resident, job=replace(resident.job, progress=progress))


def test_no_price_counts_on_jobs_that_are_faster_beside_others_than_alone() -> None:
    """A belief that says so gives the prices of sets in which nobody is slowed down."""
    known = built_in_book()

    def classes(slowdown: float) -> object:
        sets = {
            key: replace(each, slowdowns=dict.fromkeys(key.families, slowdown))
            for key, each in known.coallocation.items()
        }
        book = ProfileBook(known.solo, sets, revision=known.revision + 1)
        return EnergyPricing(HighsEnergySolver()).of(replace(pool(LP, "J1", "J4"), profiles=book)).classes

    assert classes(0.8) == classes(1.0) != classes(1.02)


def test_what_jobs_of_other_pools_took_is_not_this_pools_to_answer_for() -> None:
    """Nodes may serve several pools: who belongs to another one neither runs nor ends in this account."""
    pricing = EnergyPricing(HighsEnergySolver())
    first, later = pool(LP, "J1", "J4"), pool(LP, "J4", now_s=NOW_S + 2 * SOLVE_EVERY_S)
    elsewhere = frozenset(node.sets[0].residents[0].job.pool for node in first.nodes.values())
    theirs = [replace(seen, pool=replace(seen.pool, others=elsewhere)) for seen in (first, later)]
    assert not pricing.of(theirs[0]).classes
    assert pricing.of(theirs[1]).ended_work_s == 0


def test_on_simulated_nodes_time_counts_as_it_passes_there() -> None:
    """Where a second lasts a thousand, who is gone after two of them ran to its end, and prices are due."""
    pricing = EnergyPricing(HighsEnergySolver())
    run = make_resident(
        make_job("short", "J1", progress=make_progress(39, 40, unit_s=1404.0)), granted_s=NOW_S - 39 * 1.404
    )
    pricing.of(make_snapshot(hold_gpus(make_node("node", time_scale=1000.0), run), settings=LP))
    later = pricing.of(make_snapshot(make_node("node", time_scale=1000.0), settings=LP, now_s=NOW_S + 2))
    assert later.ended_run_s == pytest.approx(40 * 1404.0, rel=0.05)


def test_prices_of_a_solver_that_is_not_there_are_an_error_that_names_the_setting() -> None:
    """What is installed never decides: lp without a solver is refused, greedy needs none."""
    with pytest.raises(InvalidSettingError, match=r"prices.*greedy"):
        EnergyPricing(None).of(pool(LP, "J1"))
    assert EnergyPricing(None).of(pool(GREEDY, "J1", "J4")).classes


def test_a_second_longer_has_to_save_half_as_much_again_as_a_mean_job_draws_alone() -> None:
    """Also under a mean that nothing reaches no set is worth its time that saves little."""
    loose, families = replace(LP, mean_stretch=2.0), ("J1", "J2", "J3", "J4")
    priced = EnergyPricing(HighsEnergySolver()).of(pool(loose, *families))
    alone = [predict((name,), "V100", 8, built_in_book(), 0.0) for name in families]
    draws_w = [seen.power_w for seen in alone if seen is not None and seen.power_w is not None]
    assert priced.stretch_w == pytest.approx(1.5 * sum(draws_w) / len(families), rel=0.02)


def test_a_pool_that_has_spent_too_much_has_prices_also_while_nobody_runs() -> None:
    """What is owed is owed by those who come: the next one is priced at the least stretch."""
    pricing = EnergyPricing(HighsEnergySolver())
    slow = make_progress(39, 40, unit_s=2 * 1404.0)
    node = hold_gpus(make_node("node"), make_resident(make_job("late", "J1", progress=slow)))
    pricing.of(make_snapshot(node, settings=LP))
    new = make_job("new", "J4", progress=make_progress(0, 40))
    later_s = NOW_S + 2 * SOLVE_EVERY_S
    priced = pricing.of(make_snapshot(make_node("node"), waiting=[new], settings=LP, now_s=later_s))
    assert priced.ended_run_s > 1.5 * priced.ended_work_s
    assert priced.classes
