"""Rule cards, operator layout contracts and the operator table (YAML), and the small engine that reads them."""

if __name__ != "frx_graph.rules":
    raise ImportError("import frx_graph.rules: the folder rules/ is only ever installed under that name")
