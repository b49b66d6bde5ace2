"""Values that are made quickly are the same values."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from airflow_provider_eaco.core.model.quick_init import quick_init, with_changes


@quick_init
@dataclass(frozen=True, slots=True)
class Made:
    """A value with every kind of field."""

    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size")


@dataclass(frozen=True, slots=True)
class Plain:
    """The same fields, made as the standard library does it."""

    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


def test_fields_and_defaults() -> None:
    """Positions, names and defaults mean what they mean for any dataclass, and its signature says so."""
    assert Made("a", 1, [2]) == Made(parts=[2], size=1, name="a")
    assert (Made("a").size, Made("a").parts) == (3, [])
    assert inspect.signature(Made) == inspect.signature(Plain)
    with pytest.raises(TypeError, match="name"):
        Made()  # type: ignore[call-arg]


def test_a_factory_is_asked_each_time() -> None:
    """Two values never share what a factory made."""
    assert Made("a").parts is not Made("a").parts


def test_it_stays_frozen() -> None:
    """Nobody can set a field afterwards."""
    with pytest.raises(FrozenInstanceError):
        Made("a").size = 4  # type: ignore[misc]


def test_what_makes_others_of_it() -> None:
    """A changed value is checked like a new one; copies are equal."""
    value = Made("a", 1, [2])
    assert replace(value, size=2) == Made("a", 2, [2])
    with pytest.raises(ValueError, match="size"):
        replace(value, size=-1)
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_only_for_slots() -> None:
    """A class without slots is refused when it is written, not when it is used."""

    @dataclass(frozen=True)
    class Loose:
        name: str

    with pytest.raises(TypeError, match="Loose"):
        quick_init(Loose)


def test_changes_are_those_of_the_standard_library() -> None:
    """Fields that are not named stay the same objects, the value is checked anew, others are refused."""
    value = Made("a", 1, [2])
    assert with_changes(value, size=5) == replace(value, size=5)
    assert with_changes(value, name="b").parts is value.parts
    assert value == Made("a", 1, [2])
    with pytest.raises(ValueError, match="size"):
        with_changes(value, size=-1)
    with pytest.raises(TypeError, match="weight"):
        with_changes(value, weight=1)
