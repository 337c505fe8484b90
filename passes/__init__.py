"""Passes over graph facts: predicted copies, and the detectors that turn them into findings."""

if __name__ != "frx_graph.passes":
    raise ImportError("import frx_graph.passes: the folder passes/ is only ever installed under that name")
