"""Handle HTTP: limits, headers, problems, logging."""
