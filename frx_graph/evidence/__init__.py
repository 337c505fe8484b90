"""Readers of evidence, one per file: each turns a file, a log or a tool's output into measurements."""
