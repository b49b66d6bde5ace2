"""What runs of other executors teach: what they drew and needed, never how long their units took."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.profile import ProfileSource, SoloProfile
from airflow_provider_eaco.core.ports import ProfileStore, RunMeter
from airflow_provider_eaco.engine.profiling import EndedRun, with_meter


def learn_observed(profiles: ProfileStore, run: EndedRun, now_s: float) -> SoloProfile | None:
    """Take what was seen of a complete run into its family's profile; return it, or ``None`` if that is
    nothing. What else is known of the family stays: such a run has reported nothing.
    """
    if run.phase is not JobPhase.FINISHED or run.meter in {None, RunMeter()}:
        return None
    family = run.job.request.family
    known = profiles.book().solo_of(family, run.gpu_model, run.gpu_count)
    before = known or SoloProfile(family, run.gpu_model, run.gpu_count, source=ProfileSource.MEASURED)
    learned = replace(with_meter(before, run.meter or RunMeter()), updated_s=now_s)
    profiles.save_solo(learned)
    return learned
