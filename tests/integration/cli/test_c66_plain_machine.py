"""Airflow's own command on a machine without a GPU or a worker, before and after `airflow db migrate`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from airflow.cli.cli_config import CLICommand, GroupCommand

from airflow_provider_eaco.provider.cli.definition import get_eaco_cli_commands

AIRFLOW = Path(sys.executable).with_name("airflow")
LISTINGS = (
    ("status",),
    ("queue",),
    ("leases",),
    ("nodes",),
    ("profiles", "list"),
    ("profiles", "show", "J1"),
    ("bookings",),
    ("report",),
    ("simulate",),
)
NOTHING_KNOWN = (
    "no job of a task 'nothing.known' is known; name it by its job id, as DAG_ID.TASK_ID, or as "
    "DAG_ID RUN_ID TASK_ID [MAP_INDEX]"
)
REFUSED = {
    ("why", "nothing.known"): NOTHING_KNOWN,
    ("hold", "nothing.known"): NOTHING_KNOWN,
    ("release", "nothing.known"): NOTHING_KNOWN,
    ("drain", "n1"): "no node is named 'n1'; no GPU workers registered",
    ("book", "n1", "--until", "2h", "--for", "Ada"): "NODE: no node is named 'n1'; no GPU workers registered",
    ("unbook", "1"): "ID: no booking 1 runs or is to come; those that do: none",
    ("pools", "reset", "eaco"): "Airflow has no pool 'eaco'; the scheduler makes it at its next heartbeat",
    ("worker", "--node", "n1"): "airflow eaco worker: name a file with --credential-file, or set "
    "EACO_NODE_CREDENTIAL; `airflow eaco nodes add NAME` makes a credential",
    ("sampler", "--node", "n1"): "airflow eaco sampler: name a file with --credential-file, or set "
    "EACO_NODE_CREDENTIAL; `airflow eaco nodes add NAME` makes a credential",
}
# One interpreter for all verbs: starting one takes longer than what the verbs do.
ALL_VERBS = """
import contextlib, io, json, sys
from airflow.__main__ import main

told = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["airflow", "eaco", *words]
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    told.append([code, out.getvalue()])
print("TOLD " + json.dumps(told))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an Airflow that was just installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    folder = tmp_path_factory.mktemp("plain")
    return {**kept, "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def airflow(home: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([AIRFLOW, *words], env=home, capture_output=True, text=True, check=False)


def every_verb() -> Iterator[str]:
    """Yield the words of each verb that the command line has."""

    def below(commands: Iterable[CLICommand], words: str) -> Iterator[str]:
        for command in commands:
            if isinstance(command, GroupCommand):
                yield from below(command.subcommands, f"{words}{command.name} ")
            else:
                yield f"{words}{command.name}"

    [group] = get_eaco_cli_commands()
    assert isinstance(group, GroupCommand)
    return below(group.subcommands, "")


def test_c66_a_plain_machine_runs_every_verb(home: dict[str, str], migrated: Path) -> None:
    """Without tables one line says how to make them; with them every verb answers, in all formats."""
    before = airflow(home, "eaco", "status")
    assert before.returncode == 1
    assert before.stdout == ""
    assert "airflow db migrate" in before.stderr
    assert "Traceback" not in before.stderr

    shutil.copy(migrated, Path(home["AIRFLOW_HOME"]) / "airflow.db")

    exported = Path(home["AIRFLOW_HOME"], "profiles.csv")
    verbs = [[*listing, "--output", output] for listing in LISTINGS for output in ("table", "json", "yaml")]
    verbs += [["profiles", "export", str(exported)], ["profiles", "import", str(exported)]]
    verbs += [
        ["nodes", "add", "n1"],
        ["nodes", "revoke", "n1"],
        *map(list, REFUSED),
        ["db", "remove", "--yes"],
    ]
    tried = [" ".join(verb) + " " for verb in verbs]
    assert [verb for verb in every_verb() if not any(each.startswith(f"{verb} ") for each in tried)] == []
    ran = subprocess.run(
        [sys.executable, "-c", ALL_VERBS, json.dumps(verbs)],
        env=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    told = json.loads(ran.stdout.split("TOLD ", 1)[1])
    by_verb = {" ".join(words): answer for words, answer in zip(verbs, told, strict=True)}
    failed = {verb: answer for verb, answer in by_verb.items() if answer[0] not in (0, None)}
    assert {verb: answer[0] for verb, answer in failed.items()} == {
        " ".join(verb): words for verb, words in REFUSED.items()
    }
    assert "no GPU workers registered" in by_verb["status --output table"][1]
    assert "no GPU workers registered" in by_verb["nodes --output table"][1]
    assert json.loads(by_verb["queue --output json"][1]) == []
    assert "removed eaco_" in by_verb["db remove --yes"][1]
