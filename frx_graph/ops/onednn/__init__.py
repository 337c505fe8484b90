"""Run parts of a graph by oneDNN's primitives, which are made once: descriptors, packed weights, memory.

`steps.py` has the description of such a part, `program.py` runs it, and `torch_steps.py` computes it by torch's
operators where oneDNN cannot. The operator for graphs is `frx_graph.ops.onednn_region`.
"""
