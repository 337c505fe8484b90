"""Reads records and renders them; never sees a graph."""
