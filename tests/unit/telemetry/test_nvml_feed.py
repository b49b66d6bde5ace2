"""The sampling process: it samples by itself, and what happens to it costs nobody who asks for a reading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_eaco.telemetry import nvml_probe
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from airflow_provider_eaco.telemetry.nvml_feed import SamplingProcess, command
from airflow_provider_eaco.telemetry.nvml_sample import MachineSample
from tests.nvml.machine import FakeMachine
from tests.nvml.rig import ListedProcesses

DEADLINE_S = 30.0
# Longer than a process needs to start on a machine with other work.
SILENCE_S = 2.0


class Feed:
    """A sampling process and what it has delivered."""

    def __init__(self) -> None:
        self.samples: list[MachineSample] = []
        self.source = SamplingProcess(0.02, silence_s=SILENCE_S, restart_s=0.05)
        self.source.start(self.samples.append)

    def until(self, holds: Callable[[list[MachineSample]], bool]) -> None:
        """Wait until the delivered samples are as wanted."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds(list(self.samples)):
            assert time.monotonic() < deadline_s, self.samples[-1:]
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        process = self.source._process
        assert process is not None
        return process.pid


@pytest.fixture
def feed(machine: FakeMachine) -> Iterator[Feed]:
    feed = Feed()
    yield feed
    feed.source.close()


def test_samples_arrive_until_it_is_closed(feed: Feed, machine: FakeMachine) -> None:
    """Samples carry the machine's steady clock and what it shows now; the process is gone after the close."""
    feed.until(lambda samples: len(samples) > 1)
    assert 0 <= time.monotonic() - feed.samples[-1].monotonic_s < DEADLINE_S
    machine.set(0, power_mw=123_000)
    feed.until(lambda samples: samples[-1].devices[0].power_w == 123.0)
    pid = feed.pid
    feed.source.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_call_that_hangs_is_told_and_got_over(feed: Feed, machine: FakeMachine) -> None:
    """A process that says nothing is ended, which is told; the next one samples once the driver answers."""
    feed.until(bool)
    first = feed.pid
    machine.hangs = {"nvmlDeviceGetUtilizationRates"}
    machine.write()
    feed.until(lambda samples: samples[-1].problem is not None)
    assert feed.samples[-1].problem == "NVML has not answered for 2 s"
    machine.hangs = set()
    machine.write()
    feed.until(lambda samples: samples[-1].problem is None)
    assert feed.pid != first


def test_a_process_that_dies_has_a_successor(feed: Feed) -> None:
    """A crash in the driver's library ends the sampler, never the scheduler, and a new one goes on."""
    feed.until(bool)
    seen, first = len(feed.samples), feed.pid
    os.kill(first, signal.SIGKILL)
    feed.until(lambda samples: len(samples) > seen + 2 and feed.pid != first)
    assert "the process that reads NVML has ended with code -9" in {each.problem for each in feed.samples}


def test_c49_nvml_that_is_gone_is_told_and_tried_again(feed: Feed, machine: FakeMachine) -> None:
    """A driver that is replaced ends the process with its cause; a new process finds the new driver."""
    feed.until(bool)
    machine.init_code = 9
    machine.errors = {"nvmlDeviceGetPowerUsage": 18}
    machine.write()
    feed.until(lambda samples: "Driver Not Loaded" in (samples[-1].problem or ""))
    machine.init_code, machine.errors = 0, {}
    machine.write()
    feed.until(lambda samples: samples[-1].problem is None)


def test_a_listener_that_fails_does_not_end_the_sampling(
    machine: FakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ours with one sample is logged, and the next sample comes."""
    seen: list[MachineSample] = []

    def take(sample: MachineSample) -> None:
        seen.append(sample)
        raise RuntimeError("cannot be used")

    source = SamplingProcess(0.02)
    source.start(take)
    deadline_s = time.monotonic() + DEADLINE_S
    while len(seen) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    source.close()
    assert "A sample of the GPUs cannot be used" in caplog.text


def test_it_leaves_with_its_parent_even_while_it_hangs(machine: FakeMachine) -> None:
    """Whoever started it may be killed at any moment: the end of standard input ends it, in any call."""
    process = subprocess.Popen(command("sample", "0.02"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline()
    machine.hangs = {"nvmlDeviceGetPowerUsage"}
    machine.write()
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()


def test_the_sampler_loads_nothing_that_it_does_not_need() -> None:
    """It starts in a moment: neither Airflow nor SQLAlchemy nor numpy is loaded for it."""
    code = (
        "import sys, airflow_provider_eaco.telemetry.nvml_process; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'sqlalchemy', 'numpy'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_machine_is_asked_which_gpus_it_has(machine: FakeMachine) -> None:
    """The probe counts what NVML lists; no GPU and no driver are none, and no answer is taken for some."""
    assert nvml_probe.lists_a_gpu()
    machine.gpus.clear()
    machine.write()
    assert not nvml_probe.lists_a_gpu()
    machine.init_code = 9
    machine.write()
    assert not nvml_probe.lists_a_gpu()
    machine.init_code, machine.hangs = 0, {"nvmlInitWithFlags"}
    machine.write()
    assert nvml_probe.lists_a_gpu(patience_s=0.5)


def test_a_driver_that_hangs_from_the_start_keeps_nobody_waiting(machine: FakeMachine) -> None:
    """The machine offers nothing, at once, and is there as soon as its driver answers."""
    machine.hangs = {"nvmlInitWithFlags"}
    machine.write()
    meter = NvmlTelemetry("n1", SamplingProcess(0.02), ListedProcesses(), first_wait_s=0.05)
    assert (meter.inventory(), meter.read()) == ([], [])
    machine.hangs = set()
    machine.write()
    deadline_s = time.monotonic() + DEADLINE_S
    while not meter.inventory():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert [reading.power_w for reading in meter.read()] == [42.0, 42.0]
    meter.close()
