"""The provider's API for machines with a worker: what they report, and what they may begin."""
