"""``--out``: what cannot be written to gets one line that names it, before anything is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.simulator import compare, convert, run_command
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.out_option import check_out_file, check_out_folder, writing_to
from tests.unit.simulator.benchmark_data import ROOT
from tests.unit.simulator.run_folders import run_folder

TRACE = str(ROOT / "tests" / "data" / "traces" / "eaco.csv")
FOLDER = "expected a folder that takes files, or one that can be made\n"


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file where a folder is asked for, in a folder where nothing may be worked out."""

    def works(*_: object) -> None:
        raise AssertionError("the work began before --out was looked at")

    for module, name in ((run_command, "scenario_of"), (compare, "run_all"), (convert, "_trace")):
        monkeypatch.setattr(module, name, works)
    path = tmp_path / "good.csv"
    path.write_text("what was there")
    return path


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_that_is_a_file(
    command: str, below: str, taken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told at once, in one line with exit code 2, and nothing is changed."""
    out = taken / below
    assert main([command, "--trace", TRACE, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"eaco-sim {command}: error: --out: {taken}")
    assert said.endswith(FOLDER)
    assert said.count("\n") == 1
    assert taken.read_text() == "what was there"
    assert list(taken.parent.iterdir()) == [taken]


def test_a_folder_of_one_run_that_is_a_file(taken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison looks at the folders of all its runs before the first of them."""
    folder = taken.parent / "all"
    folder.mkdir()
    (folder / "eaco_fifo_sleep").write_text("")
    assert main(["compare", "--trace", TRACE, "--out", str(folder)]) == 2
    assert f"--out: {folder / 'eaco_fifo_sleep'}: " in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["eaco_fifo_sleep"]


@pytest.mark.parametrize("out", [".", "good.csv/out.csv", "a" * 300])
def test_a_file_that_cannot_be(
    out: str, taken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`convert` writes one file: no folder, nothing below a file, and no name that is too long."""
    monkeypatch.chdir(taken.parent)
    assert main(["convert", TRACE, "--out", out]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"eaco-sim convert: error: --out: {out}: ")
    assert "expected the name of a file in a folder that takes files" in said
    assert said.count("\n") == 1
    assert list(taken.parent.iterdir()) == [taken]


def test_a_page_for_which_there_is_no_folder(taken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` is held to the same."""
    run = run_folder(taken.parent / "run")
    assert main(["report", str(run), "--no-images", "--out", str(taken)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"eaco-sim report: error: --out: {taken}: ")
    assert said.endswith(FOLDER)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("words", [["run", "--trace", TRACE], ["convert", TRACE], ["report", "run"]])
def test_an_empty_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty name is no name for the current folder."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", ""])
    assert ended.value.code == 2
    assert "argument --out: is empty; expected a path" in capsys.readouterr().err


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    """What was missing is missing afterwards, and what is there stays."""
    check_out_folder(tmp_path / "deep" / "er")
    check_out_file(tmp_path / "deep" / "er" / "out.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.csv").write_text("older")
    check_out_folder(tmp_path)
    check_out_file(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "older"


def test_a_folder_that_the_system_refuses(tmp_path: Path) -> None:
    """Where even root may make nothing, the line says what the system says."""
    with pytest.raises(
        InvalidSettingError, match=r"^--out: /proc/nope: No such file or directory; expected a"
    ):
        check_out_folder(Path("/proc/nope"))


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """What fails on the way is told as of --out, too."""
    said = r"^--out: .*: cannot be written: No space left$"
    with pytest.raises(InvalidSettingError, match=said), writing_to(tmp_path):
        raise OSError(28, "No space left")
