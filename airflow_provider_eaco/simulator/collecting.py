"""Garbage collection while a simulation runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Allocations less deallocations before the young objects are looked at; Python's own is 700.
_YOUNG_OBJECTS = 50_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage rarely while the block runs; afterwards as often as before.

    A run makes millions of values and keeps a part of them for its files; next to none refer to each other in
    circles, so that nearly all go without the collector. It would go over the new ones every few events, and
    over all that is kept again and again, for 2 % of the time on a tenth of the benchmark B4 and more on all
    of it.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_YOUNG_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
