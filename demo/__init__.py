"""``make demo``: the same trainings under three policies, in a real Airflow on simulated GPUs."""
