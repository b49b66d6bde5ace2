"""Import a training library, or say which extra brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow_provider_eaco.core.model.errors import EacoError


class MissingLibraryError(EacoError, ImportError):
    """An integration was asked for whose library is not installed; the message names the extra."""


def library(*names: str, extra: str) -> Any:
    """Return the first of the named modules that is installed.

    :param extra: the extra of this package that installs one of them.
    :raises MissingLibraryError: if none of them is installed. A library that is there but fails while it is
        imported raises its own error.
    """
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            # Something that the library itself lacks is not cured by the extra's name alone.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise MissingLibraryError(
        f"{names[0]} is not installed: pip install 'airflow-provider-eaco[{extra}]'", name=names[0]
    )
