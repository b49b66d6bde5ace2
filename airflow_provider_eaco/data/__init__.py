"""Built-in measured profiles, each with its source."""
