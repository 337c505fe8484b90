"""Log advice and trials to the tracker that a team already uses."""
