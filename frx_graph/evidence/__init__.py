"""One provider a file: each turns a file, a log or a tool into measurements."""
