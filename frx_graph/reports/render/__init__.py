"""Render text, tables, pictures and pages: what all reports share."""
