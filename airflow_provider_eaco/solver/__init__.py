"""Linear programs behind a port; the only place that speaks to an LP solver."""
