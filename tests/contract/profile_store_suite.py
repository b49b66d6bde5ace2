"""The contract of the profile store; every adapter runs it as a subclass with the fixture ``profiles``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerLevel,
    PowerScope,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.core.ports import ProfileStore

BUILT_IN_SOLO = SoloProfile("alexnet", "V100", 8, unit_s=1404.0, power_w=712.0, source=ProfileSource.BUILT_IN)
BUILT_IN_PAIR = CoallocationProfile(
    family_set(("alexnet", "vgg16")),
    "V100",
    8,
    slowdowns={"alexnet": 1.03, "vgg16": 1.04},
    source=ProfileSource.BUILT_IN,
)
BUILT_IN = ProfileBook(
    solo={BUILT_IN_SOLO.key: BUILT_IN_SOLO}, coallocation={BUILT_IN_PAIR.key: BUILT_IN_PAIR}
)


class ProfileStoreContract:
    """What holds for every :class:`ProfileStore`. The fixture ``profiles`` lies over :data:`BUILT_IN`."""

    @pytest.fixture
    def profiles(self) -> ProfileStore:
        raise NotImplementedError

    def test_the_built_in_book_shows_through(self, profiles: ProfileStore) -> None:
        """Without anything of its own the store believes the built-in book."""
        book = profiles.book()
        assert book.solo_of("alexnet", "V100", 8) == BUILT_IN_SOLO
        assert book.coallocation_of(family_set(("vgg16", "alexnet")), "V100", 8) == BUILT_IN_PAIR

    def test_every_field_of_a_solo_profile_comes_back(self, profiles: ProfileStore) -> None:
        """Nothing is lost or rounded in the store."""
        profile = SoloProfile(
            "mine",
            "A100",
            2,
            unit_s=12.345,
            spread_s=0.5,
            samples=7,
            power_w=301.5,
            utilisation_pct=55.5,
            utilisation_max_pct=99.0,
            memory_utilisation_pct=12.25,
            memory_peak_mib=12000,
            units_total=90,
            checkpoints=True,
            scope=PowerScope.BOARD,
            source=ProfileSource.IMPORTED,
            updated_s=1_800_000_000.25,
            reference="a measurement",
            stale=True,
            levels=(PowerLevel(200.0, 1.05, 0.8), PowerLevel(150.0, 1.25, 0.625)),
        )
        profiles.save_solo(profile)
        assert profiles.book().solo_of("mine", "A100", 2) == profile

    def test_every_field_of_a_coallocation_comes_back(self, profiles: ProfileStore) -> None:
        """Nothing is lost or rounded in the store, a family that is there twice included."""
        profile = CoallocationProfile(
            family_set(("b", "a", "a")),
            "A100",
            2,
            slowdowns={"a": 1.25, "b": 1.5},
            power_w=500.25,
            utilisation_pct=90.5,
            utilisation_max_pct=100.0,
            memory_utilisation_pct=40.0,
            samples=3,
            spread=0.125,
            undone=2,
            scope=PowerScope.BOARD,
            updated_s=1_800_000_001.5,
            reference="a trial",
            stale=True,
            levels=(PowerLevel(200.0, 1.0, 0.875),),
        )
        profiles.save_coallocation(profile)
        assert profiles.book().coallocation_of(family_set(("a", "b", "a")), "A100", 2) == profile

    def test_unknown_numbers_stay_unknown(self, profiles: ProfileStore) -> None:
        """A profile of which only the name is known comes back so."""
        solo = SoloProfile("bare", "V100", 1)
        pair = CoallocationProfile(family_set(("a", "b")), "V100", 1, slowdowns={"a": 1.0, "b": 1.0})
        profiles.save_solo(solo)
        profiles.save_coallocation(pair)
        assert profiles.book().solo_of("bare", "V100", 1) == solo
        assert profiles.book().coallocation_of(pair.families, "V100", 1) == pair

    def test_what_is_measured_overlays_the_built_in(self, profiles: ProfileStore) -> None:
        """A saved profile hides the built-in one of its key; deleting it shows the built-in again."""
        profiles.save_solo(replace(BUILT_IN_SOLO, unit_s=99.0, source=ProfileSource.MEASURED))
        assert profiles.book().solo[BUILT_IN_SOLO.key].unit_s == 99.0
        assert profiles.delete(BUILT_IN_SOLO.key)
        assert profiles.book().solo[BUILT_IN_SOLO.key] == BUILT_IN_SOLO

    def test_a_saved_coallocation_can_be_deleted(self, profiles: ProfileStore) -> None:
        """The key says whether a solo profile or a co-allocation is meant."""
        profiles.save_coallocation(replace(BUILT_IN_PAIR, undone=1))
        assert profiles.delete(BUILT_IN_PAIR.key)
        assert profiles.book().coallocation[BUILT_IN_PAIR.key] == BUILT_IN_PAIR

    def test_deleting_nothing_says_so(self, profiles: ProfileStore) -> None:
        """A built-in profile and an unknown key cannot be forgotten."""
        revision = profiles.book().revision
        assert not profiles.delete(BUILT_IN_SOLO.key)
        assert not profiles.delete(SoloProfile("nobody", "V100", 1).key)
        assert profiles.book().revision == revision

    def test_saving_again_replaces(self, profiles: ProfileStore) -> None:
        """One profile per key: the last one."""
        profiles.save_solo(SoloProfile("mine", "V100", 1, unit_s=1.0))
        profiles.save_solo(SoloProfile("mine", "V100", 1, unit_s=2.0))
        profile = profiles.book().solo_of("mine", "V100", 1)
        assert profile is not None
        assert profile.unit_s == 2.0

    def test_c60_another_model_or_count_is_another_profile(self, profiles: ProfileStore) -> None:
        """A profile is believed for exactly its GPU model and count."""
        profiles.save_solo(SoloProfile("mine", "V100", 1, unit_s=1.0))
        assert profiles.book().solo_of("mine", "A100", 1) is None
        assert profiles.book().solo_of("mine", "V100", 2) is None

    def test_the_revision_changes_with_every_change(self, profiles: ProfileStore) -> None:
        """Equal revisions mean equal content, so what was computed from one may be kept."""
        seen = [profiles.book().revision, profiles.book().revision]
        assert seen[0] == seen[1]
        profiles.save_solo(SoloProfile("mine", "V100", 1, unit_s=1.0))
        seen.append(profiles.book().revision)
        profiles.save_coallocation(replace(BUILT_IN_PAIR, undone=1))
        seen.append(profiles.book().revision)
        profiles.delete(BUILT_IN_PAIR.key)
        seen.append(profiles.book().revision)
        assert len(set(seen)) == 4

    def test_a_book_is_a_view_that_never_changes(self, profiles: ProfileStore) -> None:
        """A book in somebody's hand stays as it was."""
        book = profiles.book()
        profiles.save_solo(SoloProfile("mine", "V100", 1, unit_s=1.0))
        assert book.solo_of("mine", "V100", 1) is None
