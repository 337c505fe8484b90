"""Takes advice and trials to where a team keeps its results already."""
