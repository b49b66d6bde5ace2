"""``eaco-profile``: measures training commands alone and together on a real GPU, without Airflow."""
