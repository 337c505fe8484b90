"""`frx serve`: the analyses over HTTP, and a page for people. Nothing is analysed here: worker processes call what the
command line calls."""
