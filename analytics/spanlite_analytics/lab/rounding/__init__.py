"""How kernels round: what each instruction does, and an emulator that gives the same bits."""
