"""What runs of other executors tell and teach: what they drew and needed, and units where they report."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.profile import ProfileSource, SoloProfile
from airflow_provider_eaco.core.ports import ProfileStore, RunMeter
from airflow_provider_eaco.engine.profiling import EndedRun, learn_run, with_meter
from airflow_provider_eaco.engine.progress import Report
from airflow_provider_eaco.engine.running_mean import RunningMean


def progress_of(report: Report, *, alone: bool) -> Progress:
    """Return how far a run has come that was granted nothing, by what it has reported itself.

    Its unit time is the mean of the last units, and known only where it ran ``alone`` all the time.
    """
    units = RunningMean.of([unit.elapsed_s for unit in report.recent if not unit.limited])
    if not alone:
        units = RunningMean()
    return Progress(
        units_done=report.units_done,
        units_total=report.units_total,
        can_yield=report.can_yield,
        solo_unit_s=units.mean,
        solo_units=units.samples,
        solo_spread_s=units.spread,
    )


def learn_observed(
    profiles: ProfileStore, run: EndedRun, report: Report | None, now_s: float
) -> SoloProfile | None:
    """Take what was seen of a complete run into its family's profile; return it, or ``None`` if that is
    nothing. Of a run that has reported nothing what else is known of the family stays.
    """
    if report is not None:
        return learn_run(profiles, run, now_s) if report.is_complete else None
    if run.phase is not JobPhase.FINISHED or run.meter in {None, RunMeter()}:
        return None
    family = run.job.request.family
    known = profiles.book().solo_of(family, run.gpu_model, run.gpu_count)
    before = known or SoloProfile(family, run.gpu_model, run.gpu_count, source=ProfileSource.MEASURED)
    learned = replace(with_meter(before, run.meter or RunMeter()), updated_s=now_s)
    profiles.save_solo(learned)
    return learned
