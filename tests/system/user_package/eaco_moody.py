"""A policy from a user's package, which fails for as long as a file is there (case C67)."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_eaco.core.policy.eaco import EacoPolicy


class MoodyPolicy(EacoPolicy):
    """EaCO on good days."""

    def decide(self, job, snapshot):
        if Path(os.environ["EACO_MOODY_FILE"]).exists():
            raise RuntimeError("the moody policy has a bad day")
        return super().decide(job, snapshot)
