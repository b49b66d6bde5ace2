"""Whether a framework goes on from where the run says that it stopped."""

from __future__ import annotations

from airflow_provider_eaco.provider.training import TrainingRun


def check_starting_point(run: TrainingRun, done: int, *, per_unit: int = 1, what: str, remedy: str) -> None:
    """Refuse a training that would do again what the run counts as done.

    More may be done than the run counts: the weights to start from can come from elsewhere.

    :param done: how many of ``what`` the framework has behind it, ``per_unit`` of which make a unit.
    :param remedy: what the author has to pass to the framework.
    :raises ValueError: if the framework starts before the run's checkpoint.
    """
    expected = run.units_done * per_unit
    if done < expected:
        raise ValueError(
            f"the training starts after {done} {what} instead of {expected}, where {run.checkpoint} was "
            f"saved: pass {remedy}"
        )


def check_positive(name: str, value: object) -> int:
    """Return ``value`` if it is a whole number of at least 1.

    :raises ValueError: otherwise; it names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {value!r} must be a whole number of at least 1")
    return value
