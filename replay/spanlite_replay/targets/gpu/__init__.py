"""`--target gpu`: the plan's device work once more on a real GPU.

`schedule` says what waits for what and where an arrival is held; `standins` which kernel stands
in for which; `build` makes CUDA graphs of it through a `driver.Driver`; `observe` finds each
span in what CUPTI measured. `cuda`, `cupti` and `compiling` are the only modules that need a
GPU; `target.GpuTarget` puts them together.
"""
