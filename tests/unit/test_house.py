"""The rules of the house that a tool can check: style, types, who imports whom, sizes and names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("airflow_provider_eaco", "tests", "dags", "plugins", "demo", "bench", "harness")
    for path in (ROOT / folder).rglob("*.py")
)
MAX_LINES = 400
# "About 40": a few lines more are better than a split without a meaning.
MAX_FUNCTION_LINES = 45
EMPTY_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff-check"),
        pytest.param(["ruff", "format", "--check", "."], id="ruff-format"),
        pytest.param(["mypy"], id="mypy-strict"),
        pytest.param(["lint-imports"], id="import-contracts"),
    ],
)
@pytest.mark.timeout(600)
def test_the_tree_passes_the_tool(command: list[str]) -> None:
    """`make lint` is clean: each of its tools, with the configuration of pyproject.toml, finds nothing."""
    tool = Path(sys.executable).with_name(command[0])
    finished = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_stays_small(path: Path) -> None:
    """A file of more than 400 lines is split by meaning."""
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_a_function_stays_short() -> None:
    """No function has more than about 40 lines, its signature and docstring counted; migrations may."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_module_is_a_drawer() -> None:
    """Modules are named after what they hold, never utils, helpers, common or misc."""
    assert [path for path in SOURCES if path.name in EMPTY_NAMES] == []


def test_the_core_starts_without_airflow() -> None:
    """Importing the package, its core and its engine imports neither Airflow nor SQLAlchemy nor a vendor."""
    code = (
        "import sys, airflow_provider_eaco, airflow_provider_eaco.core.cycle, "
        "airflow_provider_eaco.engine.admission_loop\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow','sqlalchemy','alembic','pynvml',"
        "'celery','fastapi','pydantic','scipy'}))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
