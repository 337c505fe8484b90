"""Analyse a profiler trace as a whole: busy devices, the host's work, and what holds the run back."""
