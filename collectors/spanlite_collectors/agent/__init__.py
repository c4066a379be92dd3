"""The daemon's side of the GPU agent: from rings in shared memory to spans.

`RingSource` is what `spanlite collect` runs; `control` is what `spanlite capture` uses.
"""
