"""What importing the integrations loads, and what is said where a library is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ["torch", "lightning", "pytorch_lightning", "transformers", "lightgbm", "xgboost", "sklearn"]
MISSING = f"""
import sys
for name in {LIBRARIES}:
    sys.modules[name] = None
from airflow_provider_eaco import integrations, training_run
for name in integrations.__all__:
    if name == "MissingLibraryError":
        continue
    try:
        with training_run() as run:
            getattr(integrations, name)(*(["/ckpt"] if name == "TorchCheckpoints" else [run, "/ckpt"]),
                                        **({{"model": run}} if name == "TorchCheckpoints" else {{}}))
    except integrations.MissingLibraryError as error:
        print(error)
"""


def output(code: str) -> list[str]:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def test_no_library_is_imported_before_it_is_asked_for() -> None:
    """The package, its integrations and what they share load none of the libraries, and not Airflow."""
    code = (
        "import sys, airflow_provider_eaco, airflow_provider_eaco.integrations as found\n"
        "import airflow_provider_eaco.integrations.pytorch, airflow_provider_eaco.integrations.lightgbm\n"
        "dir(found)\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {{'airflow', *{LIBRARIES}}}))"
    )
    assert output(code) == ["[]"]


def test_a_missing_library_is_named_with_the_extra_that_brings_it() -> None:
    """Each integration says what to install, and every extra that is named exists."""
    said = output(MISSING)
    extras = ["lightgbm", "lightning", "torch", "transformers", "xgboost"]
    assert sorted(line.rpartition("[")[2].rstrip("]'") for line in said) == extras
    assert all("is not installed: pip install 'airflow-provider-eaco[" in line for line in said)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= declared.keys()
