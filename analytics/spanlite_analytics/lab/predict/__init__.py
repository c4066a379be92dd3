"""Achieved occupancy and time of a grid-stride kernel before it runs, with an interval."""
