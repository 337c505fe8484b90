"""Make the ranks of one program agree on a plan."""
