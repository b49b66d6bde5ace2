"""Documents: links lead somewhere, examples are true, and the site builds without a warning."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_eaco.store import schema

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
EXAMPLES = {path: re.findall(r"```pycon\n(.*?)```", path.read_text(), re.DOTALL) for path in DOCUMENTS}
# What a browser would fetch from elsewhere to show a page of the site.
FOREIGN = re.compile(
    r"<(?:script|img|iframe|link rel=\"(?:stylesheet|preload)\")[^>]+(?:src|href)=\"(?:https?:)?//"
    r"|url\(['\"]?(?:https?:)?//"
)
MAX_PICTURE_BYTES = 150_000


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link in a document names a file or folder of the repository."""
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_two_commands(command: str) -> None:
    """README names both commands that a newcomer needs, and the Makefile has their targets."""
    assert command in (ROOT / "README.md").read_text()
    assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text()


def test_every_picture_is_shown_and_small() -> None:
    """Each picture and drawing stands on a page, and none is larger than a page should load."""
    shown = {
        (page.parent / target).resolve() for page in DOCUMENTS for target in LINK.findall(page.read_text())
    }
    pictures = [path for name in ("pictures", "drawings") for path in (ROOT / "docs" / name).iterdir()]
    assert pictures
    assert [path.name for path in pictures if path not in shown] == []
    assert [path.name for path in pictures if path.stat().st_size > MAX_PICTURE_BYTES] == []


@pytest.mark.parametrize(
    "document",
    [path for path, examples in EXAMPLES.items() if examples],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_examples_are_true(document: Path) -> None:
    """What a page shows of a Python session is what Python answers; its blocks follow each other."""
    session = doctest.DocTestParser().get_doctest(
        "\n".join(EXAMPLES[document]), {}, document.name, str(document), 0
    )
    assert session.examples
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=told.append)
    assert "".join(told) == ""


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the navigation, every reference resolves, and nothing is loaded from elsewhere."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees"]
    finished = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "site"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    pages = [path for path in (tmp_path / "site").rglob("*") if path.suffix in {".html", ".css"}]
    assert (tmp_path / "site" / "index.html") in pages
    python = (tmp_path / "site" / "reference" / "python.html").read_text()
    for name in ("gpu_request", "training_run", "TrainingRun.report"):
        assert f'id="airflow_provider_eaco.{name}"' in python
    assert [path.name for path in pages if FOREIGN.search(path.read_text())] == []


def test_every_table_is_named_in_the_guide() -> None:
    """docs/guides/database.md says of each of the provider's tables what a row is."""
    guide = (ROOT / "docs" / "guides" / "database.md").read_text(encoding="utf-8")
    assert [table.name for table in schema.metadata.sorted_tables if f"`{table.name}`" not in guide] == []
