"""The verbs as Airflow and the documents see them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from airflow.cli.cli_config import ActionCommand, CLICommand

from airflow_provider_eaco.data.profile_columns import COLUMNS
from airflow_provider_eaco.data.profile_files import read_profiles
from airflow_provider_eaco.provider.cli import get_eaco_cli_commands
from airflow_provider_eaco.provider_info import get_provider_info

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "reference" / "cli.md"


def verbs(commands: list[CLICommand], path: str = "airflow") -> Iterator[tuple[str, ActionCommand]]:
    for command in commands:
        name = f"{path} {command.name}"
        if isinstance(command, ActionCommand):
            yield name, command
        else:
            yield from verbs(list(command.subcommands), name)


def test_airflow_finds_the_commands() -> None:
    """The provider's description names the function, and Airflow's parser has the group."""
    from airflow._shared.module_loading import import_string
    from airflow.cli.cli_parser import ALL_COMMANDS_DICT

    (path,) = get_provider_info()["cli"]
    assert import_string(path) is get_eaco_cli_commands
    assert "eaco" in ALL_COMMANDS_DICT


def test_every_verb_leads_to_code() -> None:
    """What a verb loads when it runs exists."""
    from airflow._shared.module_loading import import_string

    for _, command in verbs(get_eaco_cli_commands()):
        path = command.func.__closure__[0].cell_contents
        assert callable(import_string(path)), path


def test_every_listing_has_an_output() -> None:
    """All verbs but those that write a file, ask a question or run on print in Airflow's formats."""
    without = [
        name
        for name, command in verbs(get_eaco_cli_commands())
        if not any("--output" in argument.flags for argument in command.args)
    ]
    assert [name.removeprefix("airflow eaco ") for name in without] == [
        "worker",
        "sampler",
        "profiles export",
        "db remove",
    ]


def test_the_document_names_every_verb_option_and_column() -> None:
    """docs/reference/cli.md is complete: verbs, their options, and the columns with their meaning."""
    text = DOCUMENT.read_text()
    for name, command in verbs(get_eaco_cli_commands()):
        assert f"`{name}" in text
        own = [flag for argument in command.args for flag in argument.flags if flag.startswith("--")]
        assert [flag for flag in own if flag != "--verbose" and flag not in text] == []
    for column in COLUMNS:
        assert f"| `{column.name}`{' (required)' if column.required else ''} | {column.meaning} |" in text


def test_the_documents_example_of_a_file_is_read() -> None:
    """The profile file that the document shows is accepted."""
    example = DOCUMENT.read_text().split("```csv\n")[1].split("```")[0]
    assert len(read_profiles(example, "csv", "example", 0.0)) == 2


def test_the_definition_imports_no_command() -> None:
    """Airflow loads the definition whenever its command line starts: nothing heavy of ours comes with it."""
    code = "import sys, airflow_provider_eaco.provider.cli as _; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in finished.stdout.split() if name.startswith("airflow_provider_eaco")}
    assert "airflow_provider_eaco.provider.cli.definition" in ours
    heavy = ("store", "engine", "telemetry", "dispatch", "provider.wiring", "provider.cli.view_commands")
    assert [
        name for name in ours if name.startswith(tuple(f"airflow_provider_eaco.{h}" for h in heavy))
    ] == []


def test_every_command_that_is_named_exists() -> None:
    """No document and no message tells somebody to run a verb that there is none of."""
    root = Path(__file__).resolve().parents[4]
    texts = [*root.glob("docs/**/*.md"), root / "README.md", *root.glob("airflow_provider_eaco/**/*.py")]
    named = {
        verb
        for text in texts
        for verb in re.findall(r"`airflow eaco ([a-z]+)", text.read_text(encoding="utf-8"))
    }
    known = {name.split()[2] for name, _ in verbs(get_eaco_cli_commands())}
    assert len(named) > 10
    assert named <= known
