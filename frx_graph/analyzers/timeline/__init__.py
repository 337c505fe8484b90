"""What a profiler trace says of a run as a whole: how busy devices were, what hosts did, and what holds it back."""
