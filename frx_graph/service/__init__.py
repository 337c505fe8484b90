"""`frx serve`: the analyses over HTTP, and a page for people. Worker processes run the analyses."""
