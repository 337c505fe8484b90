"""Training scripts that are told to record their runs: which loop trains, what is put into it, and how it is undone."""
