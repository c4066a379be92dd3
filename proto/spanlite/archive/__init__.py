"""The archive: its folders, its tables, and how to read it."""
