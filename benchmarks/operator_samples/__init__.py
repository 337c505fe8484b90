"""Sample calls of the operators in the operator table, and the check of its rows against torch."""
