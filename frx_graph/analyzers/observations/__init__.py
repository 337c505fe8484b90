"""Layout work that files of a run show, led back to the findings that speak of it."""
