"""What the core reasons about: jobs, GPUs, profiles, placements, decisions. Values only."""
