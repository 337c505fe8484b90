"""What counters of single kernels say: which limit each has reached, and what that means for whoever wrote it."""
