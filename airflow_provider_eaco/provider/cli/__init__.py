"""``airflow eaco ...``: what the provider knows, for people at a terminal and for scripts."""

from airflow_provider_eaco.provider.cli.definition import get_eaco_cli_commands

__all__ = ["get_eaco_cli_commands"]
