"""Controlled trials of a candidate against its baseline."""

if __name__ != "frx_graph.trials":
    raise ImportError("import frx_graph.trials: the folder trials/ is only ever installed under that name")
