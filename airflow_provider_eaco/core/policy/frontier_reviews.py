"""Reviews of the policy ``frontier``: who is late, and who is asked to leave a set for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.energy.outlook import units_total_of
from airflow_provider_eaco.core.model.instruction import Yield
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.frontier_members import Member
from airflow_provider_eaco.core.policy.reviews import Reviews
from airflow_provider_eaco.core.policy.trial import resident_profile, review_set

# The members of a held set as they stand in a snapshot, in the order of its residents.
MembersOf = Callable[[GpuSet, ClusterSnapshot], Sequence[Member]]


class FrontierReviews:
    """Says what a set needs; where a limit would not hold, it asks who can best bear to wait."""

    def __init__(self, members_of: MembersOf) -> None:
        self._reviews = Reviews()
        self._members_of = members_of

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        """Return what the set needs now."""
        return self._weighed(held, self._reviews.review(held, snapshot), snapshot)

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        """Return the sets about which something is to be done, with what it is."""
        due = [
            (held, self._weighed(held, found, snapshot)) for held, found in self._reviews.all_due(snapshot)
        ]
        return [(held, review) for held, review in due if review is not None]

    def _weighed(self, held: GpuSet, found: Review | None, snapshot: ClusterSnapshot) -> Review | None:
        if not isinstance(found, Yield):
            return found
        again = review_set(_as_long_as_done(held, snapshot.profiles), snapshot)
        if not isinstance(again, Yield):
            return again
        return replace(again, job_id=self._leaver(held, snapshot))

    def _leaver(self, held: GpuSet, snapshot: ClusterSnapshot) -> str:
        """Return the member that can wait longest within its own limits, of several the newest.

        Nobody knows for how long no other place will be there, and who waits spends its own limit.
        """
        able = [
            ((member.bears - 1) * member.left_s, resident.granted_s, resident.token, member.job_id)
            for resident, member in zip(held.residents, self._members_of(held, snapshot), strict=True)
            if resident.job.progress.can_yield
        ]
        return max(able)[-1]


def _as_long_as_done(held: GpuSet, book: ProfileBook) -> GpuSet:
    """Return the set with runs that are at least as long as what is done of them.

    That a run outlasts what it told is no reason to interrupt it: nobody knows how late it will be.
    """
    residents = [_at_least_done(resident, held, book) for resident in held.residents]
    return replace(held, residents=tuple(residents))


def _at_least_done(resident: Resident, held: GpuSet, book: ProfileBook) -> Resident:
    progress = resident.job.progress
    total = units_total_of(progress, resident_profile(resident, held, book))
    if total is None or progress.units_done <= total:
        return resident
    outlasting = replace(progress, units_total=progress.units_done)
    return replace(resident, job=replace(resident.job, progress=outlasting))
