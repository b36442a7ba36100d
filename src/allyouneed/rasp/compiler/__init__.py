"""RASP programs as the weights of an ordinary model. `compile.py` is the list of passes."""

from allyouneed.rasp.compiler.compile import compile_rasp
from allyouneed.rasp.compiler.program import Compiled, Verified
from allyouneed.rasp.compiler.refusal import CannotCompile
from allyouneed.rasp.compiler.report import Report
from allyouneed.rasp.compiler.save import ABOUT, compile_file, save
from allyouneed.rasp.compiler.verify import NotExact, equal, verify

__all__ = [
    "ABOUT",
    "CannotCompile",
    "Compiled",
    "NotExact",
    "Report",
    "Verified",
    "compile_file",
    "compile_rasp",
    "equal",
    "save",
    "verify",
]
