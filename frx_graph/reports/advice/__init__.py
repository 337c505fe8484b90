"""Render advice: terminal, Markdown, HTML, SARIF, JSON."""
