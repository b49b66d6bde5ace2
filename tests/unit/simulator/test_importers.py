"""Importers: what others measured becomes profiles with the same numbers, and nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerScope,
    ProfileSource,
    SoloProfile,
)
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.data.profile_files import Profile, write_profiles
from airflow_provider_eaco.simulator.importers import ImportChoices, import_profiles, write_imported
from airflow_provider_eaco.simulator.trace import TraceError
from tests.unit.simulator.benchmark_data import ROOT, benchmark_data

PROFILES = ROOT / "tests" / "data" / "profiles"
HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"

Keys = dict[tuple[tuple[str, ...], str, int], Profile]


def by_key(profiles: tuple[Profile, ...]) -> Keys:
    return {
        (tuple(profile.key.families), profile.gpu_model, profile.gpu_count): profile for profile in profiles
    }


def alone(profiles: Keys, family: str, gpu_model: str = "V100", gpus: int = 1) -> SoloProfile:
    profile = profiles[(family,), gpu_model, gpus]
    assert isinstance(profile, SoloProfile)
    return profile


def pair(profiles: Keys, *families: str) -> CoallocationProfile:
    profile = profiles[families, "V100", 1]
    assert isinstance(profile, CoallocationProfile)
    return profile


def test_gavels_json() -> None:
    """Rates alone become seconds of a step, rates of a pair slowdowns; what did not run is counted."""
    imported = import_profiles(PROFILES / "gavel_throughputs.json", "gavel-json")
    profiles = by_key(imported.profiles)
    assert len(profiles) == 7
    assert alone(profiles, "ResNet-18:16").unit_s == pytest.approx(1 / 80)
    assert alone(profiles, "LM:80", gpus=4).unit_s == pytest.approx(0.1)
    assert alone(profiles, "A3C:", "K80").unit_s == pytest.approx(1.0)
    assert pair(profiles, "A3C:", "ResNet-18:16").slowdowns == pytest.approx(
        {"A3C:": 5 / 4, "ResNet-18:16": 80 / 60}
    )
    # Members of one family get the slowdown of their mean speed.
    assert pair(profiles, "ResNet-18:16", "ResNet-18:16").slowdowns == pytest.approx({"ResNet-18:16": 2.0})
    assert imported.skipped == {
        "pairs that did not run together": 1,
        "over several servers": 1,
        "that did not run alone": 1,
    }


def test_what_was_not_measured_stays_unknown() -> None:
    """Gavel measured no power, memory or utilisation: the profiles say so, and that they are imported."""
    imported = import_profiles(PROFILES / "gavel_throughputs.json", "gavel-json")
    for profile in imported.profiles:
        assert (profile.power_w, profile.utilisation_pct, profile.source) == (
            None,
            None,
            ProfileSource.IMPORTED,
        )
        assert not isinstance(profile, SoloProfile) or profile.memory_peak_mib is None


def test_one_gpu_model_of_gavels_json() -> None:
    """With a GPU model only its numbers are taken, the others counted."""
    choices = ImportChoices(gpu_model="K80")
    imported = import_profiles(PROFILES / "gavel_throughputs.json", "gavel-json", choices)
    assert list(by_key(imported.profiles)) == [(("A3C:",), "K80", 1)]
    assert imported.skipped["on other GPUs"] == 4


def test_gavels_csv() -> None:
    """The flattened tables give the same profiles as the JSON; one table is taken."""
    from_json = by_key(import_profiles(PROFILES / "gavel_throughputs.json", "gavel-json").profiles)
    solo = import_profiles(PROFILES / "gavel_isolated.csv", "gavel-csv")
    pairs = import_profiles(PROFILES / "gavel_pairs.csv", "gavel-csv")
    for key, profile in by_key((*solo.profiles, *pairs.profiles)).items():
        assert profile == from_json[key]
    assert (len(solo.profiles), len(pairs.profiles)) == (2, 1)
    assert solo.skipped == {"over several servers": 1, "that did not run alone": 1, "of other tables": 1}
    assert pairs.skipped == {"pairs that did not run together": 1, "of other tables": 1}
    other = import_profiles(PROFILES / "gavel_pairs.csv", "gavel-csv", ImportChoices(table="simulation"))
    assert pair(by_key(other.profiles), "A3C:", "ResNet-18:16").slowdowns["A3C:"] == 1.0


def test_zeus_power() -> None:
    """The highest power limit is taken with its power and time; the file's name tells the GPU."""
    imported = import_profiles(PROFILES / "summary_power_v100.csv", "zeus-csv")
    profile = alone(by_key(imported.profiles), "imagenet/resnet50/sgd:256")
    assert (profile.unit_s, profile.power_w, profile.scope) == (600.25, 240.75, PowerScope.BOARD)
    assert imported.skipped == {"at other power limits": 1}


def test_zeus_at_another_limit() -> None:
    """Another limit and another name of the GPU can be asked for."""
    choices = ImportChoices(gpu_model="V100-SXM2", power_limit_w=100)
    imported = import_profiles(PROFILES / "summary_power_v100.csv", "zeus-csv", choices)
    profile = alone(by_key(imported.profiles), "imagenet/resnet50/sgd:256", "V100-SXM2")
    assert (profile.unit_s, profile.reference) == (1200.5, "Zeus (NSDI 2023), power limit 100 W")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_our_own_export(suffix: str, tmp_path: Path) -> None:
    """What `airflow eaco profiles export` writes is read, and what is written here can be read there."""
    path = tmp_path / f"profiles.{suffix}"
    path.write_text(write_profiles(built_in_book(), suffix))
    imported = import_profiles(path, "eaco-profiles")
    assert {profile.key for profile in imported.profiles} == {
        *built_in_book().solo,
        *built_in_book().coallocation,
    }
    again = tmp_path / f"again.{suffix}"
    write_imported(again, imported)
    assert by_key(import_profiles(again, "eaco-profiles").profiles) == by_key(imported.profiles)


BAD = {
    "json-cut": ("gavel-json", "t.json", '{"v100": {"(\'A', "t.json, line 1, column 11: not JSON"),
    "json-list": ("gavel-json", "t.json", "[]", "a JSON list; expected an object"),
    "json-name": (
        "gavel-json",
        "t.json",
        json.dumps({"v100": {"ResNet": {"null": 1}}}),
        "t.json, v100: 'ResNet'; expected a name such as ('ResNet-18 (batch size 16)', 1)",
    ),
    "json-no-rate": (
        "gavel-json",
        "t.json",
        json.dumps({"v100": {"('A3C', 1)": {}}}),
        "t.json, v100, ('A3C', 1), column null: None; expected steps per second alone",
    ),
    "json-negative": (
        "gavel-json",
        "t.json",
        json.dumps({"v100": {"('A3C', 1)": {"null": 1, "('A3C', 1)": [-1, 1]}}}),
        "column ('A3C', 1): [-1, 1]; expected two numbers of steps per second",
    ),
    "csv-no-column": (
        "gavel-csv",
        "t.csv",
        "table,gpu\nx,y\n",
        "line 1, column consolidated: no such column",
    ),
    "csv-no-table": (
        "gavel-csv",
        "t.csv",
        (PROFILES / "gavel_pairs.csv").read_text().replace("motivation", "physical"),
        "t.csv: no profile fits the choices (3 of other tables)",
    ),
    "zeus-which-gpu": ("zeus-csv", "power.csv", HEADER + "a,b,1,c,250,1,1\n", "power.csv: which GPU was it?"),
    "zeus-negative": (
        "zeus-csv",
        "summary_power_v100.csv",
        HEADER + "a,b,1,c,250,-1,1\n",
        "line 2, column time_per_epoch: '-1'; expected a number above 0, in seconds",
    ),
    "zeus-twice": (
        "zeus-csv",
        "summary_power_v100.csv",
        HEADER + "a,b,1,c,250,1,1\na,b,1,c,250,2,1\n",
        "line 3, column network: 'b'; expected one row for 'a/b/c:1' at 250 W",
    ),
    "own-two-errors": (
        "eaco-profiles",
        "t.csv",
        "families,gpu_model,gpu_count,unit_s\nJ1,V100,8,-1\nJ2,V100,0,1\n",
        "t.csv: line 2, column unit_s: '-1'; expected a number above 0, in seconds (and 1 more)",
    ),
    "unknown-format": ("mlperf", "t.csv", "a\n1\n", "unknown format 'mlperf'; expected one of gavel-json"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_has_one_message(name: str, tmp_path: Path) -> None:
    """A file that is not what it should be gets one line with place, column and what was expected."""
    file_format, file, text, message = BAD[name]
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        import_profiles(path, file_format)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_public_tables_are_read() -> None:
    """The V100 pairs of the published tables that ran together are all there, and so are Zeus' families."""
    choices = ImportChoices(gpu_model="V100")
    pairs = import_profiles(benchmark_data("gavel_throughputs/pairs.csv"), "gavel-csv", choices)
    assert (len(pairs.profiles), pairs.skipped["pairs that did not run together"]) == (328, 23)
    solo = import_profiles(benchmark_data("gavel_throughputs/isolated.csv"), "gavel-csv", choices)
    assert len({profile.key.families for profile in solo.profiles if profile.gpu_count == 1}) == 26
    assert import_profiles(benchmark_data("zeus_power/summary_power_v100.csv"), "zeus-csv").profiles
