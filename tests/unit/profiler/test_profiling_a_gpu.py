"""``eaco-profile`` on a machine whose NVML answers from a file, with commands of a few lines."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyMethod
from airflow_provider_eaco.data.profile_files import read_profiles
from airflow_provider_eaco.profiler import measuring
from airflow_provider_eaco.profiler.__main__ import main
from airflow_provider_eaco.profiler.commands import Command
from airflow_provider_eaco.profiler.measuring import Limits, MeasuringError, measure
from airflow_provider_eaco.profiler.nvml_gpu import NoGpuError, NvmlGpu
from airflow_provider_eaco.profiler.profiles import sets_of
from airflow_provider_eaco.profiler.workloads import NAMES, workload_commands
from airflow_provider_eaco.profiler.workloads import main as train_workload
from tests.nvml.machine import GIB, FakeMachine, fake_machine, load_library
from tests.nvml.rig import uuid_of

STEPS = "import time\nwhile True:\n    time.sleep({s})\n    print('eaco-step', flush=True)\n"
FAST = Limits(steps=3, warm_up=1, max_s=60.0)


def stepping(seconds: float) -> tuple[str, ...]:
    """Return the words of a training whose steps take so long."""
    return (sys.executable, "-c", STEPS.format(s=seconds))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = fake_machine(tmp_path, monkeypatch)
    load_library()
    monkeypatch.setattr(measuring, "LOOK_S", 0.05)
    return made


class Drawing:
    """Lets the machine draw 100 W on GPU 0 while somebody sleeps."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self._last_s = time.monotonic()

    def __call__(self, seconds: float) -> None:
        time.sleep(seconds)
        now_s = time.monotonic()
        self._machine.gpus[0]["energy_mj"] += round(100_000 * (now_s - self._last_s))
        self._last_s = now_s
        self._machine.write()


def test_a_set_is_measured_from_steps_and_counters(machine: FakeMachine) -> None:
    """Step times of each member, watts from the energy counter, use, and the peak of memory."""
    machine.set(0, gpu_pct=40, memory_pct=10, used=3 * GIB)
    gpu = NvmlGpu("0")
    pair = [Command("a", stepping(0.05)), Command("b", stepping(0.1))]
    found = measure(pair, gpu, FAST, sleep=Drawing(machine))
    gpu.close()
    assert [each.family for each in found.members] == ["a", "b"]
    # No step is shorter than its sleep.
    assert all(each.samples >= 3 for each in found.members)
    assert found.members[0].unit_s >= 0.04
    assert found.members[1].unit_s >= 0.09
    assert (found.method, found.power_w) == (EnergyMethod.COUNTER, pytest.approx(100, rel=0.2))
    assert (found.utilisation_pct, found.memory_peak_mib) == (40, 3 * 1024)


def test_what_nvml_does_not_tell_is_unknown(machine: FakeMachine) -> None:
    """Without counter and power there are step times and nothing invented."""
    machine.set(0, energy_mj=None, power_mw=None, gpu_pct=None)
    gpu = NvmlGpu("0")
    found = measure([Command("a", stepping(0.05))], gpu, FAST)
    gpu.close()
    assert (found.energy_j, found.power_w, found.method) == (None, None, EnergyMethod.UNKNOWN)
    assert found.members[0].samples >= 3


@pytest.mark.parametrize(
    ("words", "limits", "says"),
    [
        ((sys.executable, "-c", "print('no GPU for me'); raise SystemExit(3)"), FAST, "exit code 3"),
        (stepping(30.0), Limits(steps=3, warm_up=0, max_s=0.5), "were not enough"),
        (("/no/such/program",), FAST, "cannot be started"),
    ],
)
def test_a_set_that_cannot_be_measured_says_why(
    words: tuple[str, ...], limits: Limits, says: str, machine: FakeMachine
) -> None:
    """A command that ends early, tells too few steps, or is not there; nothing of the set runs on."""
    gpu = NvmlGpu("0")
    with pytest.raises(MeasuringError, match=says):
        measure([Command("a", words)], gpu, limits)
    gpu.close()


def test_profiles_are_written_and_compared(
    machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone and in pairs into a file that `profiles import` reads, and predicted against measured in words; a
    set that fails is left out and makes the exit code 1.
    """
    out = tmp_path / "own.csv"
    machine.set(0, energy_mj=None, power_mw=150_000, gpu_pct=40, memory_pct=10, used=2 * GIB)
    python = f"{sys.executable} -c"
    words = [f'{name}={python} "{STEPS.format(s=0.05)}"' for name in ("a", "b")]
    broken = f'broken={python} "raise SystemExit(4)"'
    arguments = ["--out", str(out), "--gpu", "0", "--steps", "3", "--warm-up", "1", "--max-seconds", "60"]
    assert main([*arguments, *words]) == 0
    assert "a + b: a: predicted" in capsys.readouterr().out
    profiles = read_profiles(out.read_text(), "csv", "own", 0.0)
    assert [each.key.families for each in profiles] == [("a",), ("b",), ("a", "b")]
    assert profiles[0].power_w == pytest.approx(150, rel=0.01)
    assert main([*arguments, words[0], broken]) == 1
    assert [each.key.families for each in read_profiles(out.read_text(), "csv", "own", 0.0)] == [("a",)]
    assert "broken ended with exit code 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "x.csv"], "name at least one command"),
        (["--out", "x.csv", "a="], "must be FAMILY=COMMAND"),
        (["--out", "x.txt", "a=true"], "--out: x.txt must be"),
        (["--out", "x.csv", "--steps", "1", "a=true"], "--steps 2"),
        (["--out", "x.csv", "--gpu", "9", "a=true"], "--gpu: 9 names 0 GPUs; there are: 0 "),
        (["--out", "x.csv", "a=true"], "names 2 GPUs"),
    ],
)
def test_a_wrong_input_is_refused_by_name(
    arguments: list[str], says: str, machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what is allowed; nothing is started, and no file is written."""
    assert main(arguments) == 2
    assert not Path("x.csv").exists()
    assert says in capsys.readouterr().err


def test_a_gpu_that_somebody_uses_is_not_measured_on(machine: FakeMachine) -> None:
    """What others draw would be in every number."""
    machine.processes = [(0, "c", 77, GIB, 10)]
    machine.write()
    with pytest.raises(NoGpuError, match="is used by other processes: 77"):
        NvmlGpu(uuid_of(machine, 0))


def test_the_sets_are_every_family_alone_and_together() -> None:
    """Four families make four, six and four sets of up to three."""
    assert [len(each) for each in sets_of("abcd", 3)] == [1] * 4 + [2] * 6 + [3] * 4


def test_the_workload_set_needs_torch_only_when_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing here loads it; a workload is named or refused."""
    assert workload_commands(wanted=False) == []
    assert train_workload(["nonsense"]) == 2
    assert all(name in capsys.readouterr().err for name in ("convnet",))
    assert len(NAMES) == 4
    assert "torch" not in sys.modules
