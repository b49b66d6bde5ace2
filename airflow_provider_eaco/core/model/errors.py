"""The errors of this package. Each says what to do; only :class:`NotReadyError` means a mere "not now"."""

from __future__ import annotations

MAX_SHOWN = 80


def shown(value: object) -> str:
    """Return ``value`` as an error shows it: its Python form, at most :data:`MAX_SHOWN` characters of it.

    Errors go on to task logs and database rows, and what is wrong with a value may be its length. A value
    without a Python form (a whole number of more than 4300 digits has none) is shown by its type.
    """
    try:
        return shortened(repr(value))
    except Exception:  # noqa: BLE001 - whatever the value's own code raises
        return shortened(f"<{type(value).__name__} that cannot be shown>")


def shortened(text: str, limit: int = MAX_SHOWN) -> str:
    """Return the text, with dots in place of what is beyond ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class EacoError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidRequestError(EacoError, ValueError):
    """A GPU request that no cluster could read: wrong type, unit, sign or name.

    :param argument: the argument as the author wrote it, for example ``gpu_memory``.
    :param problem: what is wrong with the value and what is allowed instead.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class InvalidSettingError(EacoError, ValueError):
    """A configured value that cannot be used.

    :param setting: full name, for example ``[eaco] pools``.
    :param problem: what is wrong and what is allowed instead.
    """

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


class InvalidProfileError(EacoError, ValueError):
    """A profile row that contradicts itself or has no usable number."""


class LeaseConflictError(EacoError):
    """Somebody else changed one of the GPUs since the snapshot was taken; plan again."""


class StoreUnavailableError(EacoError):
    """The provider's tables cannot be read or written now; running tasks are not affected."""


class LaunchError(EacoError):
    """The process of a task could not be started; the message carries the operating system's cause."""


class NotReadyError(LaunchError):
    """The process of a task cannot be started now, and nothing is wrong with the task: try again later."""


class SolverError(EacoError):
    """A linear program has no solution within its limits; the message is the solver's."""
