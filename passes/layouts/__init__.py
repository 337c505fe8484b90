"""Regions that share a layout, the cheapest layouts for them, and what a change of layout takes."""
