"""Services that carry a plan out, through ports only: the same ones live and in the simulator."""
