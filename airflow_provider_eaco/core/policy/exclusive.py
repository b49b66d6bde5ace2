"""Every job has its GPUs for itself: the baseline, and the policy of pools in mode ``exclusive``."""

from __future__ import annotations

from airflow_provider_eaco.core.policy.eaco import EacoPolicy


class ExclusivePolicy(EacoPolicy):
    """Free GPUs only. Sets that still share from before are reviewed as ever, so that a trial can end."""

    shares = False
