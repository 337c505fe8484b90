"""Layout copies: prediction, the rule that claims each, explanation."""
