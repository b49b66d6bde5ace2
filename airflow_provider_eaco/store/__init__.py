"""The provider's tables: the only place that speaks SQL."""
