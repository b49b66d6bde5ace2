"""Profile files: what is written is read back, and a file with any error is refused whole, with the place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerLevel,
    PowerScope,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.data.profile_columns import join_parts, split_parts
from airflow_provider_eaco.data.profile_files import (
    MAX_SHOWN_PROBLEMS,
    Profile,
    ProfileFileError,
    read_profiles,
    write_profiles,
)

NOW_S = 1_800_000_000.0
SOLO = SoloProfile(
    "resnet50;b64",
    "V100",
    8,
    unit_s=1440.25,
    spread_s=3.5,
    samples=90,
    power_w=1330.0,
    utilisation_pct=36.61,
    utilisation_max_pct=72.04,
    memory_utilisation_pct=22.29,
    memory_peak_mib=7000,
    units_total=90,
    checkpoints=False,
    scope=PowerScope.BOARD,
    source=ProfileSource.BUILT_IN,
    updated_s=1_700_000_000.5,
    reference='Table 1, "exclusive"',
    stale=True,
)
BARE = SoloProfile("alexnet", "V100", 1, power_w=70.0)
SET = CoallocationProfile(
    family_set(("vgg", "alexnet", "alexnet")),
    "V100",
    8,
    {"alexnet": 1.03, "vgg": 1.01},
    power_w=1506.0,
    utilisation_pct=55.16,
    samples=3,
    spread=0.02,
    undone=1,
    updated_s=1_700_000_000.0,
    reference="Table 3",
)
HEADER = "families,gpu_model,gpu_count,unit_s,power_w,slowdowns"


def book(*profiles: Profile) -> ProfileBook:
    return ProfileBook(
        solo={p.key: p for p in profiles if isinstance(p, SoloProfile)},
        coallocation={p.key: p for p in profiles if isinstance(p, CoallocationProfile)},
    )


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_what_is_written_is_read_back_as_imported(file_format: str) -> None:
    """Export and import give the same profiles, all numbers equal, with the source ``imported``."""
    text = write_profiles(book(SOLO, BARE, SET), file_format)
    found = read_profiles(text, file_format, "p", NOW_S)
    imported = ProfileSource.IMPORTED
    by_key = {profile.key: profile for profile in found}
    assert len(found) == 3
    assert by_key[SOLO.key] == replace(SOLO, source=imported)
    assert by_key[BARE.key] == replace(BARE, source=imported, updated_s=NOW_S, reference="p")
    assert by_key[SET.key] == replace(SET, source=imported)


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_power_levels_survive_and_stand_highest_first(file_format: str) -> None:
    """Of one family and of a set; to the last digit."""
    low, high = PowerLevel(150.5, 1.1, 2 / 3), PowerLevel(200.0, 1.02, 0.86)
    text = write_profiles(book(replace(SOLO, levels=(low, high)), replace(SET, levels=(low,))), file_format)
    levels = {profile.key: profile.levels for profile in read_profiles(text, file_format, "p", NOW_S)}
    assert levels == {SOLO.key: (high, low), SET.key: (low,)}


@pytest.mark.parametrize("cell", ["200", "200:1.1", "200:1.1:0.9:1", "0:1.1:0.9", "200:x:1", "1:1:1;1:2:1"])
def test_power_levels_that_cannot_be_read_are_named(cell: str) -> None:
    """Two levels of one limit contradict each other."""
    text = f"families,gpu_model,gpu_count,unit_s,levels\na,V100,1,10,{cell}\n"
    with pytest.raises(ProfileFileError, match=r"line 2, column levels: .*expected power limits as WATTS"):
        read_profiles(text, "csv", "p", NOW_S)


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_book_without_profiles_is_a_file_without_profiles(file_format: str) -> None:
    """An empty book is written as an empty file, and reading that says that there is nothing in it."""
    with pytest.raises(ProfileFileError, match="no profile in the file"):
        read_profiles(write_profiles(ProfileBook(), file_format), file_format, "p", NOW_S)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1), min_size=1))
def test_names_survive_being_one_cell(names: list[str]) -> None:
    """Whatever a name contains, also the separator, the cell splits into the same names."""
    assert split_parts(join_parts(names)) == tuple(names)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        pytest.param(
            ["a,V100,1,x,70,"], "line 2, column unit_s: 'x'; expected a number above 0, in seconds", id="text"
        ),
        pytest.param(["a,V100,1,0,70,"], "line 2, column unit_s: '0'; expected a number above 0", id="zero"),
        pytest.param(["a,V100,1,-1,70,"], "line 2, column unit_s: '-1'; expected", id="negative"),
        pytest.param(["a,V100,1,nan,70,"], "line 2, column unit_s: 'nan'; expected", id="nan"),
        pytest.param(["a,V100,1,inf,70,"], "line 2, column unit_s: 'inf'; expected", id="infinite"),
        pytest.param(
            ["a,V100,0,1,70,"],
            "line 2, column gpu_count: '0'; expected a whole number from 1 to 16",
            id="no-gpu",
        ),
        pytest.param(
            ["a,V100,1.5,1,70,"], "line 2, column gpu_count: '1.5'; expected a whole number", id="half-gpu"
        ),
        pytest.param(
            ["a,,1,1,70,"], "line 2, column gpu_model: empty; expected model of the GPUs", id="no-model"
        ),
        pytest.param(["a,V100,1,1,70"], "line 2: 5 cells; expected 6", id="short-row"),
        pytest.param(
            ["a,V100,1,1,70,1.1"], "line 2, column slowdowns: only for a set", id="solo-with-slowdown"
        ),
        pytest.param(
            ["a;b,V100,1,1,70,1;1"], "line 2, column unit_s: only for one family", id="set-with-unit"
        ),
        pytest.param(
            ["a;b,V100,1,,70,1.1"], "line 2, column slowdowns: 1 numbers; expected 2", id="one-slowdown"
        ),
        pytest.param(
            ["a;a,V100,1,,70,1.1;1.2"], "line 2, column slowdowns: two values for 'a'", id="two-values"
        ),
        pytest.param(
            ["a;;b,V100,1,,70,1;1;1"], "line 2, column families: 'a;;b'; expected names", id="empty-name"
        ),
        pytest.param(
            ["a,V100,1,,,"], "line 2: no number; expected at least one of unit_s", id="nothing-known"
        ),
        pytest.param(["a,V100,1,1,,", "", "a,V100,1,2,,"], "line 4: the same families", id="twice"),
        pytest.param(['"a,V100,1,1,,'], "not CSV", id="open-quote"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_read(rows: list[str], problem: str) -> None:
    """The message has the file, the line, the column, the cell and what was expected."""
    text = "\n".join([HEADER, *rows, "good,V100,1,1,70,"]) + "\n"
    with pytest.raises(ProfileFileError) as caught:
        read_profiles(text, "csv", "p.csv", NOW_S)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("p.csv: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("families,gpu_count\n", "line 1: no column gpu_model; it is required", id="missing"),
        pytest.param(
            "families,gpu_model,gpu_count,watts\n", "line 1, column watts: unknown; expected", id="unknown"
        ),
        pytest.param(
            "families,gpu_model,gpu_count,families\n", "line 1, column families: named twice", id="twice"
        ),
        pytest.param("", "line 1: no column families", id="empty-file"),
    ],
)
def test_a_bad_first_line_is_named(text: str, problem: str) -> None:
    """Unknown, missing and repeated columns are told before any row is read."""
    with pytest.raises(ProfileFileError) as caught:
        read_profiles(text, "csv", "p.csv", NOW_S)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        pytest.param("{", "line 1, column 2: not JSON", id="broken"),
        pytest.param("{}", "expected a list of objects", id="object"),
        pytest.param("[1]", "profile 1: expected an object", id="number"),
        pytest.param('[{"families": ["a"]}]', "profile 1, column gpu_model: empty", id="missing"),
        pytest.param('[{"watts": 1}]', "profile 1, column watts: unknown", id="unknown"),
        pytest.param('[{"gpu_model": {}}]', "profile 1, column gpu_model: an object", id="nested"),
        pytest.param(
            '[{"families": [["a"]]}]', "profile 1, column families: an object or a list of lists", id="lists"
        ),
        pytest.param(
            f'[{{"families": {"[" * 400}";"{"]" * 400}}}]', "profile 1, column families: an", id="deep"
        ),
        pytest.param("[" * 100_000, "line 1: nested too deep; expected a list of objects", id="too-deep"),
        pytest.param(f'[{{"gpu_count": {"9" * 5000}}}]', "line 1: not JSON that can be read", id="digits"),
        pytest.param(
            '[{"families": ["a"], "gpu_model": "V100", "gpu_count": 1, "power_w": NaN}]',
            "profile 1, column power_w: 'nan'",
            id="nan",
        ),
    ],
)
def test_a_bad_json_file_is_named(document: str, problem: str) -> None:
    """In JSON the place is the profile's number, or line and column where it is no JSON."""
    with pytest.raises(ProfileFileError) as caught:
        read_profiles(document, "json", "p.json", NOW_S)
    assert problem in str(caught.value)


def test_every_error_of_a_file_is_told_at_once() -> None:
    """All bad rows are named in one message, up to a number that can still be read."""
    text = "\n".join([HEADER, *(f"f{n},V100,1,x,," for n in range(MAX_SHOWN_PROBLEMS + 2))])
    with pytest.raises(ProfileFileError) as caught:
        read_profiles(text, "csv", "p.csv", NOW_S)
    assert len(caught.value.problems) == MAX_SHOWN_PROBLEMS + 2
    assert str(caught.value).endswith("p.csv: and 2 more errors")


def test_a_file_from_a_spreadsheet_is_read() -> None:
    """A byte order mark, spaces around cells and Windows line ends do no harm."""
    text = "\ufeff" + HEADER + "\r\n a , V100 , 1 , 2.5 , , \r\n"
    assert read_profiles(text, "csv", "p.csv", NOW_S)[0] == SoloProfile(
        "a", "V100", 1, unit_s=2.5, source=ProfileSource.IMPORTED, updated_s=NOW_S, reference="p.csv"
    )


def test_json_holds_numbers_and_lists() -> None:
    """A JSON file has families as a list and numbers as numbers, and leaves out what is unknown."""
    (row,) = json.loads(write_profiles(book(SET), "json"))
    assert row["families"] == ["alexnet", "alexnet", "vgg"]
    assert row["slowdowns"] == [1.03, 1.03, 1.01]
    assert "unit_s" not in row
