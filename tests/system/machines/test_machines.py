"""Many machines: trainings on both, whatever happens to a part of the site."""

from __future__ import annotations

import pytest

from tests.system.machines.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.postgres]


def test_a_task_runs_on_a_machine_with_a_worker(site: Site) -> None:
    """A task is sent to a node through Celery, trains there with the GPU it was granted, and ends well."""
    run = site.rig.run("machine_one")
    run.wait_done()
    [began, _] = run.started
    assert began["node"] in {"gpu-1", "gpu-2"}
    assert began["gpus"].startswith("GPU-")
