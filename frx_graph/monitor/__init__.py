"""Watch a promoted plan while it runs and roll it back when it misbehaves."""
