"""Find layout problems in a profiler trace alone."""
