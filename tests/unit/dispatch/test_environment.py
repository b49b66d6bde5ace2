import pytest

from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.dispatch.environment import (
    device_conflicts,
    environment_without_gpu,
    granted_environment,
)


def lease(*uuids: str) -> Lease:
    return Lease(7, "job-1", Placement("node-1", uuids), LeaseState.EXCLUSIVE, 1, 0.0)


def test_c42_a_grant_names_gpus_by_uuid_in_bus_order():
    """The environment names exactly the leased UUIDs, and asks CUDA to count by bus order."""
    assert granted_environment(lease("GPU-a", "GPU-b"), "resnet") == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "EACO_JOB_ID": "job-1",
        "EACO_LEASE_TOKEN": "7",
        "EACO_NODE": "node-1",
        "EACO_FAMILY": "resnet",
    }


def test_a_simulated_node_adds_its_state_file():
    """Only a lease on a simulated node names the device model's file."""
    simulated = granted_environment(lease("SIM-a"), "resnet", "/state.json")
    assert simulated["EACO_SIMULATED_STATE"] == "/state.json"
    assert "EACO_SIMULATED_STATE" not in granted_environment(lease("GPU-a"), "resnet")


# What the surroundings of a task may have chosen already.
DEVICES = ["MIG-3f2a", "MIG-GPU-3f2a/1/0", "GPU-3f2a", "0,1", "", "GPU-a,GPU-b", "-1", "all", "NoDevFiles"]


@pytest.mark.parametrize("inherited", DEVICES)
@pytest.mark.parametrize("uuids", [("MIG-3f2a",), ("GPU-3f2a",), ("GPU-a", "GPU-b"), ()])
def test_c44_a_choice_of_devices_is_a_text_that_nobody_takes_apart(uuids, inherited):
    """Whatever was chosen before, and whatever was granted: UUIDs of GPUs and of MIG partitions stay as they
    are, and who was granted nothing has the empty text, which is no GPU.
    """
    granted = granted_environment(lease(*uuids), "resnet")
    assert granted["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
    told = device_conflicts(granted, {"CUDA_VISIBLE_DEVICES": inherited})
    assert len(told) == (inherited != ",".join(uuids))


def test_a_lease_without_gpus_shows_none():
    """A lease that holds no GPU makes none visible, rather than leaving the choice to CUDA."""
    environment = granted_environment(lease(), "resnet")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment.items() >= environment_without_gpu().items()


@pytest.mark.parametrize(
    ("inherited", "named"),
    [
        pytest.param({}, [], id="nothing inherited"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-a"}, [], id="the same value"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0"}, ["CUDA_VISIBLE_DEVICES"], id="an index"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES"], id="none visible"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "MIG-x"}, ["CUDA_VISIBLE_DEVICES"], id="a slice"),
        pytest.param(
            {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"},
            ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"],
            id="both",
        ),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all", "PATH": "/bin"}, [], id="not granted by us"),
    ],
)
def test_c43_a_user_s_own_choice_of_devices_is_named(inherited, named):
    """Each device variable that somebody else had set differently is named with both values."""
    sentences = device_conflicts(granted_environment(lease("GPU-a"), "resnet"), inherited)
    assert [sentence.split("=")[0] for sentence in sentences] == named
    for name, sentence in zip(named, sentences, strict=True):
        assert repr(inherited[name]) in sentence
