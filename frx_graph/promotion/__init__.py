"""Find the plan that is active for a graph."""
