"""Render runs, traces and fleets of runs."""
