"""A sampler that is started anew while tasks run, on SQLite and PostgreSQL."""

from __future__ import annotations

from tests.integration.node_api.sampled import Sampled


def test_c53_a_sampler_that_is_started_anew_goes_on_with_the_same_record(sampled: Sampled) -> None:
    """The task has one lease; what the new meter counts from 0 is added to task and device."""
    sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(60)
    before = sampled.story(1)
    sampled.start_sampler()
    sampled.pass_s(40)
    after = sampled.story(1)
    assert before is not None
    assert after is not None
    assert before.energy is not None
    assert after.energy is not None
    assert len([row for row in sampled.rows("eaco_lease") if row.state == "observed"]) == 1
    assert before.energy.energy_j is not None
    assert after.energy.energy_j is not None
    # Of the 40 s, those are told for sure that had passed at the report after the first 30.
    assert after.energy.energy_j >= before.energy.energy_j + 3000.0
    devices = {row.uuid: row.runs_j for row in sampled.rows("eaco_energy_device")}
    assert after.energy.energy_j == devices[sampled.uuids[0]]
    assert after.energy.partial
