"""The benchmarks can be started; what they measure is no matter of the tests."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import bench
from bench import bench_scale
from bench.__main__ import RESULTS, parse
from bench.figures import Aim, quantile
from bench.suite import BENCHMARKS

MODULES = sorted(
    path.stem
    for path in Path(bench.__file__).parent.glob("*.py")
    if path.stem not in {"__init__", "__main__"}
)
# Airflow reads its configuration when it is imported, so this one runs in a process of its own only.
IN_A_PROCESS_OF_ITS_OWN = {"heartbeat_rig"}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in IN_A_PROCESS_OF_ITS_OWN])
def test_a_bench_module_can_be_imported(name):
    """Every module of the benchmarks imports without measuring anything."""
    assert importlib.import_module(f"bench.{name}").__doc__


@pytest.mark.parametrize(
    ("argv", "quick", "only", "out"),
    [
        pytest.param([], False, None, RESULTS, id="all"),
        pytest.param(["--quick"], True, None, RESULTS, id="quick"),
        pytest.param(
            ["--only", "cycle", "--only", "handover"], False, ["cycle", "handover"], RESULTS, id="two"
        ),
        pytest.param(["--out", "here.json"], False, None, Path("here.json"), id="elsewhere"),
    ],
)
def test_arguments_are_understood(argv, quick, only, out):
    """The command line says which benchmarks run, how long, and where the figures go."""
    found = parse(argv)
    assert (found.quick, found.only, found.out) == (quick, only, out)


def test_an_unknown_benchmark_is_refused_with_those_that_there_are(capsys):
    """A name that no benchmark has ends with an error that lists the names."""
    with pytest.raises(SystemExit):
        parse(["--only", "nonsense"])
    said = capsys.readouterr().err
    assert all(name in said for name in BENCHMARKS)


@pytest.mark.parametrize(
    ("aim", "value", "met"),
    [
        pytest.param(Aim(50.0), 49.9, True, id="below"),
        pytest.param(Aim(50.0), 50.0, False, id="not below"),
        pytest.param(Aim(0.9, at_least=True), 0.9, True, id="reached"),
        pytest.param(Aim(0.9, at_least=True), 0.89, False, id="not reached"),
    ],
)
def test_an_aim_tells_whether_it_is_met(aim, value, met):
    """A time has to stay below its aim, a ratio has to reach it."""
    assert aim.met_by(value) is met


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        pytest.param([5.0], 0.99, 5.0, id="one"),
        pytest.param([3.0, 1.0, 2.0, 4.0], 0.5, 2.0, id="half"),
        pytest.param([float(value) for value in range(1, 101)], 0.99, 99.0, id="p99 of 100"),
        pytest.param([float(value) for value in range(1, 16)], 0.9, 14.0, id="p90 of 15"),
    ],
)
def test_a_quantile_is_a_value_that_was_seen(values, share, found):
    """It is the smallest of the values that the share of them does not exceed."""
    assert quantile(values, share) == found


@pytest.mark.parametrize(
    ("seconds", "exponent"),
    [
        pytest.param([1.0, 10.0, 100.0], 1.0, id="linear"),
        pytest.param([1.0, 100.0, 10_000.0], 2.0, id="quadratic"),
        pytest.param([5.0, 5.0, 5.0], 0.0, id="constant"),
    ],
)
def test_growth_is_the_exponent_in_the_number_of_jobs(seconds, exponent):
    """It is a slope between logarithms; N log N lies a little above 1."""
    jobs = (100, 1_000, 10_000)
    samples = [
        bench_scale.Sample("eaco", 1.0, count, 1, cpu_s, cpu_s, 1.0)
        for count, cpu_s in zip(jobs, seconds, strict=True)
    ]
    found, allowed = bench_scale.growth(samples)
    assert found == pytest.approx(exponent)
    assert 1.1 < allowed < 1.2


@pytest.mark.parametrize("part", ["0", "101", "nan"])
def test_a_part_of_the_trace_is_a_per_cent(part, capsys):
    """What is no part of a whole is refused with what is allowed."""
    with pytest.raises(SystemExit):
        bench_scale.parse(["--parts", part])
    assert "above 0 and at most 100" in capsys.readouterr().err
