"""Layout findings that a profiler trace alone supports."""
