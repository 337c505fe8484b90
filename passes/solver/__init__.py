"""The cheapest labels for a graph of operators whose values are converted where labels differ: numbers only.

`problem` says what is asked, `solve` answers. On the way `bundles` merges what is tied, `lowering` turns seconds into
whole ticks, `splitting` separates what does not interact, and each part is solved by a minimum cut (`two_labels`), by
`elimination`, or, where neither is possible, by `expansion`.
"""
