"""The only wing that knows Airflow."""
