"""``/profiles``: what is believed about families, and how a user puts it right."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Response
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.profile import CoallocationProfile, ProfileBook, SoloProfile
from airflow_provider_eaco.data.profile_files import Profile, profiles_in_order, read_profiles, write_profiles
from airflow_provider_eaco.provider.api.access import CanSee, CanSteer, User, reads_every_dag
from airflow_provider_eaco.provider.api.audit_log import note_change
from airflow_provider_eaco.provider.api.jobs_shown import HIDDEN
from airflow_provider_eaco.provider.api.paging import Limit, Offset, Page
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.wiring import Store

router = APIRouter(tags=["profiles"], dependencies=[CanSee])

MAX_FILE = 4_000_000
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

ProfileId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


class ProfileShown(BaseModel):
    """One profile; ``unit_s`` of one family alone, ``slowdowns`` of a set. ``null`` is unknown."""

    profile_id: str
    families: list[str]
    gpu_model: str
    gpu_count: int
    unit_s: float | None
    spread: float | None = Field(description="standard deviation: seconds of one family, a factor of a set")
    slowdowns: list[float] | None
    power_w: float | None
    power_of: str
    utilisation_pct: float | None
    memory_peak_mib: int | None
    samples: int
    undone: int | None
    source: str
    updated_s: float | None
    stale: bool
    reference: str


class Staleness(BaseModel):
    """Whether nothing about sharing is to be decided by a profile until its family has run again."""

    stale: bool


class ProfileFile(BaseModel):
    """Profiles as ``airflow eaco profiles export`` writes them."""

    format: Literal["csv", "json"]
    text: str = Field(max_length=MAX_FILE)


class Imported(BaseModel):
    """How many profiles were stored."""

    profiles: int


@router.get("/profiles", response_model=Page[ProfileShown])
def profiles(
    user: User,
    family: Annotated[str | None, Query(max_length=250, description="with this in a family's name")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Page[ProfileShown]:
    """Return profiles: of one family first, then of sets. Names are for those who may read every DAG."""
    store = the_store()
    hidden = not reads_every_dag(user)
    found = profiles_in_order(store.profiles.book())
    if family is not None and not hidden:
        found = [each for each in found if any(family in name for name in each.key.families)]
    return Page[ProfileShown](
        now_s=store.clock.now_s(),
        items=[_shown(each, hidden=hidden) for each in found[offset : offset + limit]],
        total=len(found),
        limit=limit,
        offset=offset,
    )


@router.get(
    "/profiles/export",
    response_class=Response,
    responses={200: {"content": {kind.partition(";")[0]: {} for kind in MEDIA_TYPES.values()}}},
)
def export(
    user: User, file_format: Annotated[Literal["csv", "json"], Query(alias="format")] = "csv"
) -> Response:
    """Return all profiles as the file that ``airflow eaco profiles export`` writes."""
    if not reads_every_dag(user):
        raise HTTPException(403, "an export names every family; it needs to read every DAG")
    text = write_profiles(the_store().profiles.book(), file_format)
    name = f'attachment; filename="profiles.{file_format}"'
    return Response(text, media_type=MEDIA_TYPES[file_format], headers={"Content-Disposition": name})


@router.post("/profiles/import", response_model=Imported, dependencies=[CanSteer])
def import_file(user: User, body: ProfileFile) -> Imported:
    """Store a file's profiles, all or none, in place of those of the same keys. Needs to change pools."""
    store = the_store()
    found = read_profiles(body.text, body.format, "the file", store.clock.now_s())
    note_change(user, "eaco user import profiles", f"{len(found)} profiles")
    store.profiles.save_all(found)
    return Imported(profiles=len(found))


@router.put("/profiles/{profile_id}/stale", response_model=ProfileShown, dependencies=[CanSteer])
def set_stale(user: User, profile_id: ProfileId, body: Staleness) -> ProfileShown:
    """Mark a profile stale, or end that. Needs to change pools."""
    store = the_store()
    found = _profile(store, profile_id)
    note_change(user, "eaco user profile stale" if body.stale else "eaco user profile fresh", _name(found))
    changed = replace(found, stale=body.stale)
    store.profiles.save_all([changed])
    return _shown(changed, hidden=not reads_every_dag(user))


@router.delete("/profiles/{profile_id}", status_code=204, dependencies=[CanSteer])
def forget(user: User, profile_id: ProfileId) -> None:
    """Forget what was learnt or imported for a key; a built-in profile shows again. Needs to change pools."""
    store = the_store()
    found = _profile(store, profile_id)
    note_change(user, "eaco user profile forget", _name(found))
    store.profiles.delete(found.key)


def _profile(store: Store, profile_id: str) -> Profile:
    for each in _all(store.profiles.book()):
        if id_of(each) == profile_id:
            return each
    raise HTTPException(404, "no such profile is stored")


def _all(book: ProfileBook) -> list[Profile]:
    return [*book.solo.values(), *book.coallocation.values()]


def _name(profile: Profile) -> str:
    return f"{' + '.join(profile.key.families)} on {profile.gpu_count} x {profile.gpu_model}"


def id_of(profile: Profile) -> str:
    """Return the digest of the profile's key by which the API names it."""
    key = profile.key
    text = "\0".join([*key.families, key.gpu_model, str(key.gpu_count)])
    return sha256(text.encode()).hexdigest()[:32]


def _shown(profile: Profile, *, hidden: bool) -> ProfileShown:
    solo = profile if isinstance(profile, SoloProfile) else None
    shared = profile if isinstance(profile, CoallocationProfile) else None
    families = profile.key.families
    return ProfileShown(
        profile_id=id_of(profile),
        families=[HIDDEN for _ in families] if hidden else list(families),
        gpu_model=profile.gpu_model,
        gpu_count=profile.gpu_count,
        unit_s=None if solo is None else solo.unit_s,
        spread=solo.spread_s if solo is not None else shared.spread if shared is not None else None,
        slowdowns=None if shared is None else [shared.slowdowns[family] for family in families],
        power_w=profile.power_w,
        power_of=profile.scope.value,
        utilisation_pct=profile.utilisation_pct,
        memory_peak_mib=None if solo is None else solo.memory_peak_mib,
        samples=profile.samples,
        undone=None if shared is None else shared.undone,
        source=profile.source.value,
        updated_s=profile.updated_s,
        stale=profile.stale,
        reference="" if hidden else profile.reference,
    )
