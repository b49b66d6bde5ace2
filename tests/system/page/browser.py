"""A real Chromium on the pages of a real Airflow; what it complains of fails the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM_MISSING = "no Chromium is installed: apt-get install chromium"
AXE_VERSION = "4.10.3"
# A real reload of a busy machine may take its time; nothing here is ever this slow on a free one.
TIMEOUT_MS = 30_000
SCREENSHOTS = Path("build") / "screenshots"
# Airflow's own frame around the page, which is not ours to change.
_FOREIGN_WARNINGS = ("An iframe which has both allow-scripts and allow-same-origin",)


def is_ci() -> bool:
    """Tell whether what is missing has to fail."""
    return bool(os.environ.get("CI"))


def missing(what: str) -> None:
    """Skip the test for something that is not there, or fail it in CI."""
    if is_ci():
        pytest.fail(what)
    pytest.skip(what)


def chromium_path() -> str:
    """Return where Chromium is; without it the test is skipped, and fails in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        missing(CHROMIUM_MISSING)
    return str(found)


def axe_source(folder: Path) -> str:
    """Return axe-core's script, fetched with npm into the folder; without npm the test is skipped."""
    script = folder / "package" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            missing("no npm is installed, which fetches axe-core: apt-get install npm")
        packed = subprocess.run(
            [str(npm), "pack", "--silent", f"axe-core@{AXE_VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if packed.returncode != 0:
            missing(f"npm cannot fetch axe-core: {packed.stderr.strip()[:200]}")
        shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder, "gztar", filter="data")
    return script.read_text()


@dataclass
class Watch:
    """What went wrong in a page: messages of its console, errors of scripts, requests that failed."""

    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def follow(self, page: object) -> None:
        """Note everything from now on."""
        on = page.on  # type: ignore[attr-defined] # a page of Playwright, which not everybody has installed
        on("console", self._console)
        on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        on("requestfailed", self._failed)
        on("response", self._answered)

    def _console(self, message: object) -> None:
        kind, text = message.type, message.text  # type: ignore[attr-defined]
        if kind in {"error", "warning"} and not text.startswith(_FOREIGN_WARNINGS):
            self.problems.append(f"console {kind}: {text}")

    def _failed(self, request: object) -> None:
        # A request that is under way when a page is left is no failure.
        if "ERR_ABORTED" not in str(request.failure):  # type: ignore[attr-defined]
            self.problems.append(f"failed: {request.url} {request.failure}")  # type: ignore[attr-defined]

    def _answered(self, response: object) -> None:
        self.requests.append(response.url)  # type: ignore[attr-defined]
        if response.status >= 400:  # type: ignore[attr-defined]
            self.problems.append(f"{response.status}: {response.url}")  # type: ignore[attr-defined]


@contextmanager
def no_problems(watch: Watch) -> Iterator[None]:
    """Fail if anything went wrong meanwhile."""
    watch.problems.clear()
    yield
    assert watch.problems == []
