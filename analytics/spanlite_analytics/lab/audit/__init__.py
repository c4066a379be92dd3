"""Reads a kernel's PTX and SASS, and says what is wrong with it.

`inputs` finds the code in a file, `ptx` and `sass` parse it, `machine` runs one block of a kernel
over made-up values, `watch/` holds the rules that look on, and `report` prints what they saw.
"""
