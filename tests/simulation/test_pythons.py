"""The same seed gives the same bytes on every Python that is found here with numpy, and starting is cheap."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.commands import COMMANDS
from tests.unit.simulator.benchmark_data import ROOT, benchmark_data

OLDEST = (3, 11)
SCRIPT = """
import sys
from airflow_provider_eaco.simulator.__main__ import main
out = sys.argv[1]
b1 = ["eaco-nodes", "--nodes", "3", "--load", "1.5", "--jobs", "40", "--belief", "solo"]
b1 += ["--belief-error", "0.1"]
b2 = ["gavel-gpus", "--nodes", "2", "--load", "1.2", "--jobs", "40", "--accounting", "sleep"]
b3 = ["order", "--scenario", "mixed", "--gpus", "16", "--order", "horizon", "--duration-error", "0.5"]
for name, words in (("b1", b1), ("b2", b2), ("b3", b3)):
    assert main(["run", *words, "--no-report", "--out", f"{out}/{name}"]) == 0
"""
# Whatever a command needs later, its help does not: these take longer to import than everything else.
HEAVY = ("airflow", "scipy", "matplotlib", "sqlalchemy", "pydantic", "fastapi", "pynvml", "pandas")


def pythons() -> list[str]:
    """This Python, those of the path and of pyenv, and those that EACO_PYTHONS lists, each once."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = os.environ.get("EACO_PYTHONS", "").split(os.pathsep)
    on_path = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20)]
    candidates = [sys.executable, *named, *map(str, sorted(pyenv.glob("versions/*/bin/python"))), *on_path]
    found: dict[str, str] = {}
    for candidate in filter(None, candidates):
        asked = "import sys, numpy; print(sys.version_info >= (3, 11), sys.version, numpy.__version__)"
        answer = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.startswith("True"):
            found.setdefault(answer.stdout, candidate)
    return list(found.values())


def checksums(python: str, folder: Path, hash_seed: str) -> dict[str, str]:
    """Run the three benchmarks and return the checksum of every CSV file."""
    settings = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "PATH": os.environ["PATH"]}
    if "EACO_DATA" in os.environ:
        settings["EACO_DATA"] = os.environ["EACO_DATA"]
    ran = subprocess.run(
        [python, "-c", SCRIPT, str(folder)],
        env=settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{python}: {ran.stderr[-2000:]}"
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.csv"))
    }


def test_every_python_writes_the_same_bytes(tmp_path: Path) -> None:
    """Small runs of three benchmarks with drawn errors, on each Python and with another hash seed each."""
    for needed in ("itp_traces/cluster01.csv", "itp_traces/cluster08.csv", "gavel_throughputs/pairs.csv"):
        benchmark_data(needed)
    first, *others = pythons()
    expected = checksums(first, tmp_path / "first", "1")
    assert len(expected) == 3 * 4
    for number, python in enumerate([*others, first]):
        assert checksums(python, tmp_path / str(number), str(number + 2)) == expected, python


@pytest.mark.parametrize("commands", [[[]], [[name] for name in sorted(COMMANDS)]], ids=["all", "each"])
def test_help_imports_nothing_heavy(commands: list[list[str]]) -> None:
    """The console script and the help of each command start without Airflow, scipy, matplotlib or a store."""
    code = (
        "import sys, json\n"
        "from airflow_provider_eaco.simulator.__main__ import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n        main([*words, '--help'])\n"
        "    except SystemExit as ended:\n        assert ended.code == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(shown.stdout.splitlines()[-1])}
    assert loaded.isdisjoint(HEAVY)
    if commands == [[]]:
        assert "numpy" not in loaded
