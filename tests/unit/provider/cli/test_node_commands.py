"""``airflow eaco nodes add`` and ``revoke``, and what a worker says when it cannot start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.provider import observe_wiring, worker, worker_secrets
from airflow_provider_eaco.provider.node_settings import GpuSource
from airflow_provider_eaco.provider.observe_wiring import run_sampler
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.wiring import open_credentials
from airflow_provider_eaco.provider.worker_register import RunRegister, WorkerRunsError
from tests.unit.provider.cli.rig import Cli, Cluster


def test_a_credential_is_shown_once_and_opens_its_node(cluster: Cluster, cli: Cli) -> None:
    """The one line on standard output is the credential, so that it can be piped into a file."""
    outcome = cli("nodes", "add", "gpu-1")
    credential = outcome.out.strip()
    assert "\n" not in credential
    assert "shown once" in outcome.err
    assert open_credentials().accepts("gpu-1", credential)
    assert not open_credentials().accepts("gpu-2", credential)


def test_a_second_credential_voids_the_first(cluster: Cluster, cli: Cli) -> None:
    """Adding a node again is how a lost credential is replaced."""
    [first] = cli("nodes", "add", "gpu-1", "-o", "json").json()
    [second] = cli("nodes", "add", "gpu-1", "-o", "json").json()
    assert not open_credentials().accepts("gpu-1", first["credential"])
    assert open_credentials().accepts("gpu-1", second["credential"])


def test_a_revoked_node_is_gone_and_its_credential_void(cluster: Cluster, cli: Cli) -> None:
    """Nothing new is placed there; a node without leases leaves the list at once."""
    [added] = cli("nodes", "add", "gpu-1", "-o", "json").json()
    cluster.add_node("gpu-1")
    [told] = cli("nodes", "revoke", "gpu-1", "-o", "json").json()
    assert told["node"] == "gpu-1"
    assert not open_credentials().accepts("gpu-1", added["credential"])
    assert cli("nodes", "-o", "json").json() == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "gpu 1"), "must be 1 to 128 letters"),
        (("add", "gpu:1"), "must be 1 to 128 letters"),
        (("add", "n1"), "a node of a scheduler's own machine"),
        (("add",), "name the node"),
        (("revoke", "gpu-9"), "those that have one: gpu-1"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    words: tuple[str, ...], says: str, cluster: Cluster, cli: Cli
) -> None:
    """Each mistake names what is wrong and what is there."""
    cluster.add_node("n1")
    cli("nodes", "add", "gpu-1")
    outcome = cli("nodes", *words)
    assert outcome.code == 1
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["worker", "sampler"])
def test_who_has_no_credential_is_told_how_to_get_one(
    verb: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker or sampler that cannot speak for its node does not start."""
    monkeypatch.delenv("EACO_NODE_CREDENTIAL", raising=False)
    assert f"airflow eaco {verb}: name a file" in cli(verb, "--node", "gpu-1").err
    missing = tmp_path / "missing"
    assert str(missing) in cli(verb, "--node", "gpu-1", "--credential-file", str(missing)).err
    assert "--node" in cli(verb, "--node", "gpu 1").err


@pytest.mark.parametrize(
    ("verb", "module"), [("worker", worker), ("sampler", observe_wiring)], ids=["worker", "sampler"]
)
def test_memory_is_closed_before_anything_is_started(
    verb: str, module: ModuleType, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the user was changed, which may open it again, and before anybody else could look into it."""
    done: list[str] = []
    name = f"run_{verb}"
    for step in ("give_up_root", "close_memory"):
        monkeypatch.setattr(worker_secrets, step, lambda *_, step=step: done.append(step))
    monkeypatch.setattr(module, name, lambda *_: done.append(name))
    file = tmp_path / "credential"
    file.write_text("credential-of-this-test\n")
    outcome = cli(verb, "--node", "gpu-1", "--credential-file", str(file))
    assert (outcome.code, outcome.err) == (0, "")
    assert done == ["give_up_root", "close_memory", name]


def test_a_sampler_needs_real_gpus(tmp_path: Path) -> None:
    """Simulated ones have no processes; and a worker of the same node keeps it out."""
    settings = EacoSettings(telemetry=GpuSource.SIMULATED, home=tmp_path, node_api_url="http://127.0.0.1:9")
    with pytest.raises(InvalidSettingError, match="nothing to sample"):
        run_sampler("gpu-1", "secret", settings)
    worker = RunRegister(tmp_path / "eaco", "gpu-1")
    with pytest.raises(WorkerRunsError):
        run_sampler("gpu-1", "secret", replace(settings, telemetry=GpuSource.NVML))
    worker.close()
