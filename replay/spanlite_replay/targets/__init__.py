"""Where a replay goes. A target has three methods (`base.Target`): prepare, launch, drain."""
