"""Turn one model into ranked findings: capture, facts, detectors."""
