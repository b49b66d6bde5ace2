"""The drop-in plugin of a source checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
CHECK = """
import sys
from airflow.settings import get_policy_plugin_manager
from airflow import plugins_manager
{before}
plugins, errors = plugins_manager._get_plugins()
assert errors == {{}}, errors
assert "eaco_checkout" in [plugin.name for plugin in plugins], plugins
from airflow_provider_eaco.provider import rules
hooks = get_policy_plugin_manager().hook.task_policy.get_hookimpls()
assert [hook.plugin for hook in hooks] == [rules], hooks
"""
AS_IF_NOT_INSTALLED = "get_policy_plugin_manager().unregister(name='eaco_rules')"


@pytest.mark.parametrize("before", ["", AS_IF_NOT_INSTALLED], ids=["installed", "not installed"])
def test_the_plugin_applies_the_rules_once(before: str, tmp_path: Path) -> None:
    """Airflow loads the file, and the rules are registered exactly once with or without an installation."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__PLUGINS_FOLDER": str(PLUGINS)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(before=before)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
