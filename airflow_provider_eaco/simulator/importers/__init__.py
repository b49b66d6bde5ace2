"""Importers of profiles: what others have measured, as profiles that simulator and live engine can believe.

Numbers are taken as they stand. What is not in a file stays unknown, and what cannot become a profile (a pair
that ran out of memory) is counted, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_eaco.core.model.profile import CoallocationProfile, ProfileBook, SoloProfile
from airflow_provider_eaco.data.profile_files import ProfileFileError, read_profiles, write_profiles
from airflow_provider_eaco.simulator.importers import gavel, zeus
from airflow_provider_eaco.simulator.importers.choices import ImportChoices, Imported
from airflow_provider_eaco.simulator.readers.table import text_of
from airflow_provider_eaco.simulator.trace import TraceError
from airflow_provider_eaco.simulator.whole_file import whole_file

__all__ = ["IMPORTERS", "ImportChoices", "Imported", "import_profiles", "write_imported"]

Importer = Callable[[Path, str, ImportChoices], Imported]


def _own_export(path: Path, text: str, choices: ImportChoices) -> Imported:
    file_format = "json" if path.suffix.lower() == ".json" else "csv"
    try:
        # A row without a date counts as changed when its file was.
        return Imported(read_profiles(text, file_format, str(path), float(int(path.stat().st_mtime))))
    except ProfileFileError as error:
        more = len(error.problems) - 1
        also = f" (and {more} more)" if more else ""
        raise TraceError(str(path), f"{error.problems[0]}{also}") from error


IMPORTERS: Mapping[str, Importer] = {
    "gavel-json": gavel.read_json,
    "gavel-csv": gavel.read_csv,
    "zeus-csv": zeus.read_csv,
    "eaco-profiles": _own_export,
}


def import_profiles(path: Path, file_format: str, choices: ImportChoices | None = None) -> Imported:
    """Return the profiles of the file.

    :param file_format: one of :data:`IMPORTERS`.
    :raises TraceError: if the file is not that, with the place and what was expected.
    """
    if file_format not in IMPORTERS:
        raise TraceError(str(path), f"unknown format {file_format!r}; expected one of {', '.join(IMPORTERS)}")
    imported = IMPORTERS[file_format](path, text_of(path), choices or ImportChoices())
    if not imported.profiles:
        skipped = ", ".join(f"{count} {reason}" for reason, count in imported.skipped.items())
        raise TraceError(str(path), f"no profile fits the choices ({skipped or 'no row'})")
    return imported


def write_imported(path: Path, imported: Imported) -> None:
    """Write the profiles as `airflow eaco profiles import` reads them; the suffix says CSV or JSON."""
    book = ProfileBook(
        {profile.key: profile for profile in imported.profiles if isinstance(profile, SoloProfile)},
        {profile.key: profile for profile in imported.profiles if isinstance(profile, CoallocationProfile)},
    )
    text = write_profiles(book, "json" if path.suffix.lower() == ".json" else "csv")
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")
