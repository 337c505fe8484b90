"""Read PTX: a kernel's instructions before the assembler has given them registers."""
