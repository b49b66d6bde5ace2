"""Alembic's environment for the provider's tables."""
