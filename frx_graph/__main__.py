"""`python -m frx_graph` is `frx`."""

from frx_graph.cli.main import main

main()
