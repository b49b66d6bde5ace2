"""Services that carry a plan out, through ports only."""
