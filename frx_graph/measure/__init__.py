"""Measure operators, generated code and this machine."""
