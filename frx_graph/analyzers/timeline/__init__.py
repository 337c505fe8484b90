"""Analyse a profiler trace as a whole: busy devices, the host's work, and the bottlenecks."""
