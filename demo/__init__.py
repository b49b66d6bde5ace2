"""``make demo``: the same trainings under two policies, in a real Airflow on simulated GPUs."""
