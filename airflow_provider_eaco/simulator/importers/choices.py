"""What an import takes from a file, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_eaco.data.profile_files import Profile


@dataclass(frozen=True, slots=True)
class ImportChoices:
    """Which rows of a file are meant; ``None`` takes what the format says.

    :param gpu_model: model as our inventory names it, for example ``V100``.
    :param table: table of the Gavel CSV.
    :param power_limit_w: power limit of the Zeus rows; the highest by default.
    """

    gpu_model: str | None = None
    table: str = "motivation"
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """Profiles, and the number of rows that became none, by reason."""

    profiles: tuple[Profile, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
