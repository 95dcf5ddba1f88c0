"""The hand-written levels side by side: predicted without a GPU, timed on one, and explained by the profiler.

`rungs` says which levels are meant, `predict` and `measure` make their rows, `profile` reads counters through ncu and
`diagnose` decides from them what to read next, `plot` draws the roofline. `cutegemm ladder` prints what these find.
"""
