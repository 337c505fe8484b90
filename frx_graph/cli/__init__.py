"""Define the commands, one thin module each."""
