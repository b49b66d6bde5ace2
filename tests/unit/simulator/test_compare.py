"""``eaco-sim compare``, ``bounds`` and ``report``: what is run, what is printed, and what is left behind."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget
from airflow_provider_eaco.simulator import bounds_command, compare, run_command
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.compare import Variant, command_of, variants_of
from airflow_provider_eaco.simulator.report.page import UNKNOWN
from airflow_provider_eaco.simulator.scenario import Accounting
from tests.unit.simulator.benchmark_data import ROOT
from tests.unit.simulator.run_folders import exclusive_folder, run_folder

TRACE = str(ROOT / "tests" / "data" / "traces" / "eaco.csv")
BOTH = (Accounting.ALWAYS_ON, Accounting.SLEEP)


def options_of(*words: str, what: Sequence[str] = ("--trace", TRACE)) -> Namespace:
    parser = ArgumentParser()
    compare.add_arguments(parser)
    options = parser.parse_args([*what, "--out", "x", *words])
    compare.set_defaults(options)
    return options


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], [("exclusive", "fifo", None), ("eaco", "fifo", None)], id="default"),
        pytest.param(
            ["--policy", "eaco:2", "eaco:4"],
            [("exclusive", "fifo", None), ("eaco", "fifo", 2), ("eaco", "fifo", 4)],
            id="the-baseline-is-always-there",
        ),
        pytest.param(
            ["--policy", "exclusive", "--order", "sjf", "fifo"],
            [("exclusive", "fifo", None), ("exclusive", "sjf", None)],
            id="no-run-twice",
        ),
    ],
)
def test_what_is_run(words: list[str], expected: list[tuple[str, str, int | None]]) -> None:
    """Every combination is run once in both accountings, FIFO exclusive first."""
    assert variants_of(options_of(*words)) == [
        Variant(policy, order, accounting, residents)
        for accounting in BOTH
        for policy, order, residents in expected
    ]


@pytest.mark.parametrize("word", ["eaco:", "eaco:0", "eaco:two", "eaco:-1"])
def test_a_number_that_is_none(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy with a number of residents that is none is refused, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        options_of("--policy", word)
    assert caught.value.code == 2
    assert f"'{word}' is not POLICY or POLICY:N" in capsys.readouterr().err


def test_names_of_folders_differ() -> None:
    """No two runs write to one folder."""
    options = options_of("--policy", "exclusive", "eaco:2", "eaco:3", "--order", "fifo", "sjf")
    names = [variant.name for variant in variants_of(options)]
    assert len(set(names)) == len(names) == 12
    assert names[:2] == ["exclusive_fifo_always-on", "exclusive_sjf_always-on"]


def test_the_orders_of_a_day() -> None:
    """In the benchmark order each order is run once; beside inference fifo also with its peak kept."""
    batch = [variant.name for variant in variants_of(options_of(what=("order",)))]
    assert batch == [f"exclusive_{order}_always-on" for order in compare.ORDERS_OF_A_DAY]
    words = ("--scenario", "mixed", "--order", "fifo", "horizon")
    mixed = [variant.name for variant in variants_of(options_of(*words, what=("order",)))]
    assert mixed == [
        "exclusive_fifo_always-on_peak",
        "exclusive_fifo_always-on_peak_wait",
        "exclusive_fifo_always-on",
        "exclusive_horizon_always-on",
    ]


@pytest.mark.parametrize(
    ("text", "seeds"), [("7", (7,)), ("0-3", (0, 1, 2, 3)), ("1,5-6,5", (1, 5, 6)), ("2-2", (2,))]
)
def test_seeds_are_listed(text: str, seeds: tuple[int, ...]) -> None:
    """Single seeds and ranges, each once."""
    assert options_of("--seeds", text).seeds == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1..3"])
def test_seeds_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no list of seeds is refused, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        options_of(f"--seeds={text}")
    assert caught.value.code == 2
    assert "is not as 0-19 or 1,2,5" in capsys.readouterr().err


def test_orders_are_compared_over_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With seeds each run has its folder, and the table has means with their spread, beside the bound."""
    words = ["order", "--scenario", "mixed", "--load", "0.7", "--seeds", "1,3", "--order", "horizon"]
    assert main(["compare", *words, "--processes", "1", "--no-report", "--out", str(tmp_path)]) == 0
    head, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert head[:6] == [
        "order",
        "days",
        "used, %",
        "to fifo, points",
        "to fifo that oversized jobs block, points",
        "no schedule exceeds, %",
    ]
    assert [row[0] for row in rows] == ["fifo, peak kept", "fifo, peak kept, oversized jobs wait", "horizon"]
    used = []
    for seed in (1, 3):
        folder = tmp_path / f"seed-{seed:03d}" / "exclusive_horizon_always-on"
        used.append(100 * json.loads((folder / "summary.json").read_text())["order_day"]["used"])
    mean, spread = sum(used) / 2, abs(used[0] - used[1]) / 2**0.5
    assert rows[2][2] == f"{mean:.1f} \N{PLUS-MINUS SIGN} {spread:.1f}"
    assert rows[0][3].startswith("+0.0")


def test_policies_are_compared_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With seeds every other benchmark and a trace end in the table of `figures`."""
    words = ["--trace", TRACE, "--nodes", "2", "--seeds", "1-2", "--policy", "exclusive"]
    words += ["--accounting", "always-on", "--processes", "1", "--no-report", "--out", str(tmp_path)]
    assert main(["compare", *words]) == 0
    assert f"`{tmp_path.name}`, seeds 1 to 2:" in capsys.readouterr().out


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of one comparison, and the lines that it printed."""
    folder = tmp_path_factory.mktemp("compared")
    words = ["--trace", TRACE, "--nodes", "2", "--out", str(folder), "--processes", "2"]
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["compare", *words]) == 0
    return folder, printed.getvalue().splitlines()


def test_policies_side_by_side(compared: tuple[Path, list[str]]) -> None:
    """Runs in processes of their own leave their files, and print a line each in both accountings."""
    folder, printed = compared
    assert printed[0].split()[:3] == ["run", "accounting", "energy"]
    assert [line.split()[0] for line in printed[1:]] == ["exclusive", "eaco", "exclusive", "eaco"]
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert folders == sorted(
        f"{policy}_fifo_{accounting}" for policy in ("exclusive", "eaco") for accounting in BOTH
    )
    assert all((folder / name / "summary.json").exists() for name in folders)


def test_one_page_shows_them_all(compared: tuple[Path, list[str]]) -> None:
    """The page has both accountings and the command, but no place of this machine."""
    folder, _ = compared
    page = (folder / "report.html").read_text()
    assert "Energy by state, always-on" in page
    assert "Energy by state, sleep" in page
    assert "eaco-sim compare --trace eaco.csv --policy exclusive eaco --order fifo --nodes 2 --seed 1" in page
    assert str(folder) not in page
    assert (folder / "pareto-sleep.png").exists()


def test_a_run_of_the_comparison_is_the_run_alone(compared: tuple[Path, list[str]], tmp_path: Path) -> None:
    """A run inside a comparison leaves the same CSV files, byte for byte, as `run` does."""
    folder, _ = compared
    words = ["--trace", TRACE, "--nodes", "2", "--accounting", "sleep", "--no-report"]
    assert main(["run", *words, "--out", str(tmp_path)]) == 0
    for name in ("jobs.csv", "schedule.csv", "nodes.csv", "decisions.csv"):
        assert (folder / "eaco_fifo_sleep" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_run_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first run that fails ends the comparison with its name and cause, and exit code 2."""
    words = ["--trace", TRACE, "--gpus-per-node", "4", "--processes", "1", "--out", str(tmp_path)]
    assert main(["compare", *words]) == 2
    said = capsys.readouterr().err
    assert "exclusive_fifo_always-on: " in said
    assert "job 'first' needs 8 GPUs; expected at most 4" in said
    assert list(tmp_path.iterdir()) == []


def test_bounds_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The bounds are known before anything is simulated, as a table and as JSON."""
    assert main(["bounds", "--trace", TRACE, "--nodes", "2"]) == 0
    table = capsys.readouterr().out
    assert "mean stretch, at most" in table
    assert "makespan at least" in table
    assert main(["bounds", "--trace", TRACE, "--nodes", "2", "--json"]) == 0
    limits = json.loads(capsys.readouterr().out)
    watt_hours = 712 * 3600 + 959 * 7200 + 1533 * 1800.5 + 1330 * 5400
    assert limits["exclusive_energy_j"] == pytest.approx(watt_hours)
    assert limits["energy_j"] < limits["exclusive_energy_j"]
    assert limits["makespan_s"] == 9400.0
    assert limits["pareto"][0] == {
        "mean_stretch": 1.0,
        "energy_j": pytest.approx(watt_hours),
        "energy_j_within_limits": pytest.approx(watt_hours),
    }
    assert all(point["energy_j_within_limits"] >= point["energy_j"] - 1 for point in limits["pareto"])


def test_a_day_has_bounds_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The bounds of every benchmark can be asked for, whatever policy it is about."""
    assert main(["bounds", "order", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] > 0


@pytest.mark.parametrize("command", [run_command, compare, bounds_command])
def test_every_option_is_in_the_reference(command: ModuleType) -> None:
    """The page of the simulator names each option that the command's help lists."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    page = (ROOT / "docs" / "reference" / "simulator.md").read_text()
    options = [option for action in parser._actions for option in action.option_strings]
    assert [option for option in options if f"`{option}" not in page and option not in {"-h", "--help"}] == []


def test_a_report_of_runs_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` makes the page of one run beside its files, and of several where it is told to."""
    one, two = run_folder(tmp_path / "one"), exclusive_folder(tmp_path / "two")
    assert main(["report", str(one), "--no-images"]) == 0
    assert capsys.readouterr().out.strip() == str(one / "report.html")
    both = tmp_path / "both"
    assert main(["report", str(one), str(two), "--no-images", "--out", str(both)]) == 0
    page = (both / "report.html").read_text()
    assert "exclusive" in page
    assert UNKNOWN not in page.split("<tbody>")[1].split("</tbody>")[0]


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without the files of a run is named, with exit code 2."""
    assert main(["report", str(tmp_path)]) == 2
    assert "jobs.csv: cannot be read: No such file" in capsys.readouterr().err


def test_a_budget_holds_for_all_runs_and_stands_in_the_command() -> None:
    """Who reads the page can make the same runs again."""
    options = options_of("--power-budget", "9000", "--over-budget", "warn")
    assert run_command.energy_budget_of(options) == EnergyBudget(9000.0, None, BudgetAction.WARN)
    assert "--power-budget 9000.0 --over-budget warn" in command_of(options)
    assert "budget" not in command_of(options_of())
