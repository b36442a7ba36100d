"""Compiles RASP programs into the weights of an ordinary model. `compile.py` is the list of passes."""

from allyouneed.rasp.compiler.compile import compile_rasp
from allyouneed.rasp.compiler.compiled import CompiledProgram, Verification
from allyouneed.rasp.compiler.refusal import CannotCompile
from allyouneed.rasp.compiler.report import CompilationReport
from allyouneed.rasp.compiler.save import ABOUT, compile_file, save
from allyouneed.rasp.compiler.verify import NotExact, equal, verify

__all__ = [
    "ABOUT",
    "CannotCompile",
    "CompilationReport",
    "CompiledProgram",
    "NotExact",
    "Verification",
    "compile_file",
    "compile_rasp",
    "equal",
    "save",
    "verify",
]
