"""How much host memory a node has: the machine's, or what its control groups leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.telemetry import nvml
from airflow_provider_eaco.telemetry.host_memory import host_memory_mib, physical_memory_mib
from tests.contract.parts import ManualClock
from tests.nvml.machine import FakeMachine
from tests.nvml.rig import direct_meter

MIB = 2**20
# The layouts of cgroups(7): version 2, version 1, both (v2 holds no memory there), and a container that is
# shown its host's path.
V2, V1 = "0::/batch/task\n", "5:cpu:/other\n4:hugetlb,memory:/batch/task\n"


def seen(folder: Path, own: str, limits: dict[str, str]) -> int | None:
    """Return what is seen with these own groups and these files below the mount."""
    (folder / "own").write_text(own)
    for name, text in limits.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_memory_mib(folder / "own", folder / "groups")


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        pytest.param(V2, {"batch/task/memory.max": f"{96 * MIB}\n"}, id="v2"),
        pytest.param(
            V2,
            {"batch/task/memory.max": "max\n", "batch/memory.max": f"{96 * MIB}\n"},
            id="v2, of the group above",
        ),
        pytest.param(
            V2,
            {"batch/task/memory.max": f"{96 * MIB}\n", "batch/memory.max": f"{97 * MIB}\n"},
            id="v2, the smallest",
        ),
        pytest.param("0::/\n", {"memory.max": f"{97 * MIB - 1}\n"}, id="v2 in a container, whole MiB"),
        pytest.param(V1, {"memory/batch/task/memory.limit_in_bytes": f"{96 * MIB}\n"}, id="v1"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": f"{96 * MIB}\n"}, id="v1 in a container"),
        pytest.param(
            V1 + "0::/x\n", {"memory/batch/memory.limit_in_bytes": f"{96 * MIB}"}, id="both versions"
        ),
    ],
)
def test_c16_a_limit_of_the_control_group_is_the_nodes_host_memory(
    own: str, limits: dict[str, str], tmp_path: Path
) -> None:
    """Where a container or a service may use less than the machine has, the node has that much."""
    assert seen(tmp_path, own, limits) == 96


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        pytest.param(V2, {"batch/task/memory.max": "max\n"}, id="no limit"),
        pytest.param(V2, {"batch/task/memory.max": f"{2**62}\n"}, id="more than there is"),
        pytest.param(
            V1, {"memory/batch/task/memory.limit_in_bytes": "9223372036854771712\n"}, id="v1's none"
        ),
        pytest.param(V2, {"elsewhere/memory.max": f"{96 * MIB}\n"}, id="another group's"),
        pytest.param("5:cpu:/batch\n", {"batch/memory.max": f"{96 * MIB}\n"}, id="not the memory's group"),
        pytest.param(V2, {"batch/task/memory.max/x": ""}, id="unreadable"),
        pytest.param(V2, {"batch/task/memory.max": "-1\n", "batch/memory.max": "0\n"}, id="nonsense"),
        pytest.param("no groups\n", {}, id="no groups"),
    ],
)
def test_c16_without_a_limit_a_node_has_what_the_machine_has(
    own: str, limits: dict[str, str], tmp_path: Path
) -> None:
    """No limit, and one that cannot be read, takes nothing from the machine's memory."""
    assert seen(tmp_path, own, limits) == physical_memory_mib()
    assert host_memory_mib(tmp_path / "none", tmp_path / "none") == physical_memory_mib()


def test_c16_the_nodes_host_memory_is_what_its_control_group_leaves(
    machine: FakeMachine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory has the limited amount, which admission counts with."""
    monkeypatch.setattr(nvml, "host_memory_mib", lambda: 96)
    (node,) = direct_meter(clock).inventory()
    assert node.host_memory_mib == 96
