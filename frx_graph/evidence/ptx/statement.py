"""What may stand in the body of a PTX function: labels, instructions, declarations. Lexical only.

https://docs.nvidia.com/cuda/parallel-thread-execution/#statements. Where the words leave something open, `ptxas` has
decided: it takes `add .s32` and `@ ! p`, but neither `add. s32` nor a semicolon alone.
"""

from __future__ import annotations

import re

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NAME = r"[A-Za-z_$%][\w$]*"
DECLARATION = (
    r"(?:\.(?:visible|extern|weak|common)\s*)?"
    r"\.(?:reg|sreg|global|const|shared|local|param|tex|surf|texref|samplerref|surfref|pragma|alias|branchtargets"
    rf'|calltargets|callprototype|attribute)\b[^;"]*(?:{_STRING}[^;"]*)*;'
    r"|\.loc\s+\d+\s+\d+\s+\d+"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\w+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
    rf"|\.file\s+\d+\s+{_STRING}(?:\s*,\s*\d+){{0,2}}"
    r"|\.section\s+[.\w]+\s*\{[^}]*\}"
    r"|@@DWARF[^\n]*"
)
_ONE = (
    # A modifier such as `.shared::cta` has two colons, and does not make a label of what stands before.
    rf"(?P<label>{_NAME})\s*:(?!:)"
    r"|(?P<guard>@\s*!?\s*[\w%$]+\s+)?(?P<opcode>(?>[a-z]\w*(?:\s*\.[\w:]+)*))(?!\s*:)"
    # Braces hold vectors: `{%f1, %f2}`.
    r"(?P<operands>[^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);"
    rf"|(?P<declaration>{DECLARATION})"
)
STATEMENTS = rf"(?:(?:{_ONE})\s*){{1,1000}}"
"""As many as the parser is given at once; without a limit a match would remember each until all are matched."""
STATEMENT = re.compile(_ONE)
