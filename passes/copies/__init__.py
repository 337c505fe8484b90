"""Layout copies: predicted, owned by one rule each, explained."""
