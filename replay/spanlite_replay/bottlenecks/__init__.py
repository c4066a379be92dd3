"""Where the time of each step went, and what made slow steps slow."""
