"""Lets a program whose weights were stored anew do what it did before, as its caller sees it."""
