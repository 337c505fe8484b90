"""PTX: what a kernel's instructions are, before the assembler has given them registers."""
