"""Edit training scripts so that they record their runs, and undo the edits."""
