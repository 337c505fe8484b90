"""Find the cheapest labels for a graph of operators whose values are converted where labels differ: numbers only.

`problem` defines the question and `solve` answers it. On the way `lowering` turns seconds into whole ticks and
`splitting` separates what does not interact. Each part is solved by a minimum cut (`two_labels`), by `elimination`, or,
if neither is possible, by `expansion`.
"""
