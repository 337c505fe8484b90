"""Read torch.profiler traces: events, nesting, launches, steps, call sites."""
