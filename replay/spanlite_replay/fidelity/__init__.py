"""How faithful a replay was: `compare(recorded, observed)` and ways to show the result."""
