"""Energy-aware ordering, admission and GPU sharing for Apache Airflow training tasks."""

__version__ = "0.1.0"
