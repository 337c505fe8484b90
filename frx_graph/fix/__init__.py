"""Change source code so that findings are gone: one fixer a file, each with its rule, guards and refusals."""
