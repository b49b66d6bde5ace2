"""``airflow eaco profiles``: what is shown, and what travels from one installation to another."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_eaco.core.model.profile import ProfileSource
from tests.builders import make_solo
from tests.unit.provider.cli.rig import Cli, Cluster


def test_profiles_travel_through_a_file(cluster: Cluster, cli: Cli, tmp_path: Path) -> None:
    """What one installation exports another imports, marked as imported."""
    cluster.store.profiles.save_all([make_solo("mine", unit_s=12.5, source=ProfileSource.MEASURED)])
    for name in ("p.csv", "p.json"):
        path = tmp_path / name
        assert cli("profiles", "export", str(path)).code == 0
        assert cli("profiles", "import", str(path)).code == 0
        (told,) = cli("profiles", "show", "mine", "-o", "json").json()
        assert (told["pace"], told["source"]) == ("12.50 s per unit", "imported")
    exported = cli("profiles", "export").out
    assert exported.startswith("families,gpu_model,gpu_count,unit_s")
    assert json.loads(cli("profiles", "export", "--file-format", "json").out)


def test_profiles_import_is_all_or_nothing(cluster: Cluster, cli: Cli, tmp_path: Path) -> None:
    """A file with one bad row changes nothing; the message names line, column and what is expected."""
    path = tmp_path / "p.csv"
    path.write_text("families,gpu_model,gpu_count,power_w\ngood,T4,1,40\nbad,T4,1,lots\n")
    outcome = cli("profiles", "import", str(path))
    assert outcome.code == 1
    assert outcome.err == "p.csv: line 3, column power_w: 'lots'; expected a number above 0, in watts\n"
    assert cli("profiles", "show", "good").code == 1


def test_profiles_import_of_a_missing_file(cluster: Cluster, cli: Cli, tmp_path: Path) -> None:
    """A file that is not there, or is no text, is an error with its name."""
    assert "none.csv cannot be read" in cli("profiles", "import", str(tmp_path / "none.csv")).err
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    assert "b.csv cannot be read" in cli("profiles", "import", str(tmp_path / "b.csv")).err
    assert "cannot be written" in cli("profiles", "export", str(tmp_path / "no" / "p.csv")).err


def test_profiles_show_says_where_built_in_numbers_come_from(cluster: Cluster, cli: Cli) -> None:
    """A family is shown alone and in every set, each with its source; an unknown one suggests near names."""
    told = cli("profiles", "show", "J1", "-o", "json").json()
    assert len(told) > 1
    assert all(each["source"] == "built-in" for each in told)
    assert all("2412.08294" in each["reference"] for each in told)
    assert "reference" in cli("profiles", "show", "J1").out
    outcome = cli("profiles", "show", "J1x")
    assert outcome.code == 1
    assert "near: J1" in outcome.err
