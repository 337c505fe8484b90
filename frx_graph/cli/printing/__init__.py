"""Print what commands return: text, JSON, reports, notices."""
