"""Profiles in memory, over a built-in book, for virtual time and for tests."""

from __future__ import annotations

import threading

from airflow_provider_eaco.core.model.profile import CoallocationProfile, ProfileBook, ProfileKey, SoloProfile


class MemoryProfileStore:
    """Profiles over a built-in book that is never changed."""

    def __init__(self, built_in: ProfileBook | None = None) -> None:
        self._built_in = built_in or ProfileBook()
        self._mutex = threading.Lock()
        self._solo: dict[ProfileKey, SoloProfile] = {}
        self._coallocation: dict[ProfileKey, CoallocationProfile] = {}
        self._book = self._built_in

    def book(self) -> ProfileBook:
        """Return the present beliefs as one view; equal revisions mean equal content."""
        return self._book

    def save_solo(self, profile: SoloProfile) -> None:
        with self._mutex:
            self._solo[profile.key] = profile
            known = self._book
            solo = {**known.solo, profile.key: profile}
            self._book = ProfileBook(solo, known.coallocation, known.revision + 1)

    def save_coallocation(self, profile: CoallocationProfile) -> None:
        with self._mutex:
            self._coallocation[profile.key] = profile
            known = self._book
            coallocation = {**known.coallocation, profile.key: profile}
            self._book = ProfileBook(known.solo, coallocation, known.revision + 1)

    def delete(self, key: ProfileKey) -> bool:
        """Forget what was stored for the key; return whether there was."""
        with self._mutex:
            gone = self._solo.pop(key, None) or self._coallocation.pop(key, None)
            if gone is not None:
                self._rebuild()
            return gone is not None

    def _rebuild(self) -> None:
        self._book = ProfileBook(
            solo={**self._built_in.solo, **self._solo},
            coallocation={**self._built_in.coallocation, **self._coallocation},
            revision=self._book.revision + 1,
        )
