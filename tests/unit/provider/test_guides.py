"""What the guides tell users to paste into their configuration works."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.provider.options import DEFAULTS
from airflow_provider_eaco.provider.settings import parse_settings

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```ini\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_configuration_shown_is_accepted(block: str) -> None:
    """Each block names options that exist, with values that can be used."""
    config = ConfigParser()
    config.read_string(block)
    if config.has_section("eaco"):
        assert set(config.options("eaco")) <= set(DEFAULTS)
    parse_settings(
        lambda name: config.get("eaco", name, fallback=DEFAULTS[name]),
        home=Path("/airflow"),
        has_driver=True,
        host="here",
    )


def test_operators_find_reasons_by_their_code() -> None:
    """The codes in the troubleshooting table are those that the commands show."""
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    table = page.split("## When a task waits")[1]
    codes = {
        code
        for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for code in re.findall(r"`(.*?)`", row)
    }
    assert codes >= {"pool_unknown", "no_such_gpu", "waiting_for_gpu"}
    assert codes <= {"unknown", *(reason.code for reason in Reason)}
