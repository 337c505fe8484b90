"""Read records and render them; this package never sees a graph."""
