"""Run trials one after the other on this machine, or on the nodes of a Ray cluster."""
