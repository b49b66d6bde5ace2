"""The errors of this package. Each says what to do; none is raised for a mere "not now"."""

from __future__ import annotations


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


class SolverError(EacoError):
    """A linear program has no solution within its limits; the message is the solver's."""
