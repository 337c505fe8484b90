"""From a program to its graphs: what is compiled, where it came from, what could not be captured."""
