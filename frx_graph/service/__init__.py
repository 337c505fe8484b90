"""`frx serve`: the analyses over HTTP, with a web page. Worker processes run the analyses."""
