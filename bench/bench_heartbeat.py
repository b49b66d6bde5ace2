"""How long one heartbeat of the executor takes while it holds 1,000 tasks and its node is full.

On SQLite and on PostgreSQL, with Airflow's own schema. One beat a second, as in a scheduler with nothing else
to do, so that what is due every few seconds is in the figures as often as it is in reality. Nothing changes
between the beats: the queue waits. The first beat after the hand-over, which looks every task up, decides on
it and stores why it waits, stands apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figures import Aim, Breakdown, Figure, Kind, Outcome, figures_of, quantile
from tests.databases import postgres_server

WAITING, GPUS = 1_000, 8
DAGS = Path(__file__).parent / "dags"
_AIM = Aim(200.0)
_TIMEOUT_S = 600


def run(*, quick: bool, profile_folder: Path | None = None) -> Outcome:
    """Measure both databases; with a folder, leave a cProfile of each there."""
    beats = 15 if quick else 60
    figures: list[Figure] = []
    breakdowns, details = [], {}
    for name, url in _databases():
        profile = None if profile_folder is None else profile_folder / f"heartbeat-{name.lower()}.prof"
        with url as address:
            found = _measured(address, beats, profile)
        details[name] = found
        beats_ms = [seconds * 1000 for seconds in found["beats_s"]]
        what = f"heartbeat, {WAITING:,} held, {name}"
        figures += figures_of(what, beats_ms, "ms", Kind.TIME, median_aim=_AIM, high_aim=_AIM)
        cpu_ms = [seconds * 1000 for seconds in found["cpu_s"]]
        figures.append(
            Figure(what, "median CPU", statistics.median(cpu_ms), "ms", Kind.CPU_TIME, len(cpu_ms))
        )
        first_ms = found["first_s"] * 1000
        figures.append(Figure(f"first after hand-over, {name}", "once", first_ms, "ms", Kind.TIME, 1))
        breakdowns.append(_breakdown(name, found))
    return Outcome(figures, breakdowns, details)


def _databases() -> Iterator[tuple[str, Any]]:
    yield "SQLite", _sqlite()
    yield "PostgreSQL", postgres_server()


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        yield f"sqlite:///{folder}/airflow.db"


def _measured(url: str, beats: int, profile: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        home = Path(folder)
        environment = _environment(home, url)
        _command(["-m", "airflow", "db", "migrate"], environment)
        out = home / "result.json"
        sizes = ["--waiting", str(WAITING), "--gpus", str(GPUS), "--beats", str(beats)]
        files = ["--dags", str(DAGS), "--out", str(out)]
        asked = [] if profile is None else ["--profile", str(profile.resolve())]
        _command(["-m", "bench.heartbeat_rig", *sizes, *files, *asked], environment)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def _environment(home: Path, url: str) -> dict[str, str]:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    return {
        **surroundings,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__CORE__EXECUTOR": "airflow_provider_eaco.EacoExecutor",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0" * 64,
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__EACO__SIMULATED_NODES": json.dumps([{"name": "bench-1", "gpus": GPUS}]),
    }


def _command(arguments: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def _breakdown(name: str, found: Mapping[str, Any]) -> Breakdown:
    rows = []
    beats = len(found["beats_s"])
    steps: Mapping[str, list[float]] = found["steps_s"]
    for step, seconds in sorted(steps.items(), key=lambda item: -sum(item[1])):
        ms = [each * 1000 for each in seconds]
        statements = statistics.median(found["step_statements"][step])
        rows.append(
            [
                step,
                f"{len(ms)} of {beats}",
                f"{statistics.median(ms):.1f}",
                f"{quantile(ms, 0.99):.1f}",
                f"{sum(ms) / beats:.1f}",
                f"{statements:.0f}",
            ]
        )
    rest = (sum(found["beats_s"]) - sum(map(sum, steps.values()))) * 1000 / beats
    rows.append(["Airflow's own part and the plain lane", f"{beats} of {beats}", "", "", f"{rest:.1f}", ""])
    head = ["step", "beats", "median ms", "p99 ms", "mean ms a beat", "SQL statements"]
    return Breakdown(f"Where a heartbeat's time goes, {name}", head, rows)
