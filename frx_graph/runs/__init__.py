"""Recording runs: what a program calls to tell of its steps, what collects a run into a bundle, what tunes one."""
