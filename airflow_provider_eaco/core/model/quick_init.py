"""Frozen values that are made by the hundred thousand, and cheaper to make than ``dataclasses`` has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

_NOT_GIVEN = object()


def quick_init(kind: type[T]) -> type[T]:
    """Return the frozen dataclass with slots, with an ``__init__`` that does the same in less time, and with
    what :func:`with_changes` takes.

    The one that ``dataclasses`` writes sets each field through ``object.__setattr__``, which looks the name
    up on the class every time; under a profiler that was 18 % of the samples of a run of B4. A slot sets its
    own value at once. Instances are as frozen as before.

    :raises TypeError: if the class has no slots of its own for its fields, or takes some by keyword only.
    """
    made_of = fields(kind)  # type: ignore[arg-type]
    slots = vars(kind)
    if any(field.name not in slots or field.kw_only or not field.init for field in made_of):
        raise TypeError(f"quick_init: {kind.__qualname__} has to be a dataclass with slots and plain fields")
    names: dict[str, Any] = {"_not_given": _NOT_GIVEN}
    for field in made_of:
        names[f"_set_{field.name}"] = slots[field.name].__set__
        names[f"_default_{field.name}"] = field.default
        names[f"_make_{field.name}"] = field.default_factory
    body = [line for field in made_of for line in _lines(field)]
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ", ".join(["self", *map(_parameter, made_of)])
    # As dataclasses does it: a function with these parameters can only be had from text.
    exec(f"def __init__({signature}):\n " + "\n ".join(body), names)  # noqa: S102
    init: Callable[..., None] = names["__init__"]
    kind.__init__ = wraps(kind.__init__)(init)  # type: ignore[method-assign]
    kind.__replace__ = _replacing(kind)  # type: ignore[attr-defined]
    return kind


def with_changes(value: T, **changes: Any) -> T:
    """Return the frozen value with other values in some fields, as :func:`dataclasses.replace` does.

    That one looks at the description of every field each time, which takes several times as long.

    :param value: of a class with :func:`quick_init`.
    :raises TypeError: for a field that it does not have.
    """
    made: T = value.__replace__(**changes)  # type: ignore[attr-defined]
    return made


def _replacing(kind: type[T]) -> Callable[..., T]:
    names: dict[str, Any] = {"_not_given": _NOT_GIVEN, "_kind": kind}
    fields_of = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    signature = ", ".join(["self", "*", *(f"{name}=_not_given" for name in fields_of)])
    given = ", ".join(f"self.{name} if {name} is _not_given else {name}" for name in fields_of)
    exec(f"def __replace__({signature}):\n return _kind({given})", names)  # noqa: S102
    replacing: Callable[..., T] = names["__replace__"]
    return replacing


def _parameter(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_not_given"
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"


def _lines(field: Field[Any]) -> list[str]:
    lines = [f"_set_{field.name}(self, {field.name})"]
    if field.default_factory is not MISSING:
        lines.insert(0, f"if {field.name} is _not_given: {field.name} = _make_{field.name}()")
    return lines
