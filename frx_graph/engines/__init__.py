"""Engines that run trials: one after the other on this machine, or spread over the nodes of a Ray cluster."""
