// Nothing of its own: the entry points are in agent.cpp and nvtx.cpp.
