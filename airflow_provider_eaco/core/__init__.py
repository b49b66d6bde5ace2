"""The pure core: it decides, and neither reads a clock nor speaks to anything outside."""
