"""The package's public names: what users import.

What a type checker tells them about it is in ``tests/typing/api.py``, which ``make lint`` and
``test_house.py`` check: each wrong use there bears an ignore that strict mypy refuses where it finds nothing.
"""

from __future__ import annotations

import pytest

import airflow_provider_eaco


@pytest.mark.parametrize("name", airflow_provider_eaco.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    """Each name in ``__all__`` resolves on first use, and to the same object afterwards."""
    assert getattr(airflow_provider_eaco, name) is getattr(airflow_provider_eaco, name)
    assert name in dir(airflow_provider_eaco)


def test_other_names_are_refused() -> None:
    """A misspelt name is an AttributeError that names the package."""
    with pytest.raises(AttributeError, match=r"airflow_provider_eaco.*gpu_requests"):
        airflow_provider_eaco.gpu_requests  # noqa: B018 - reading it is the test
