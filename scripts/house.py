"""Check the size and shape of the tree. `make check` runs this.

    files      at most 400 lines of Python, C or JavaScript
    functions  at most 60 lines, docstring included; Python only
    classes    no public name defined at the top level of two modules of the package
    imports    no cycle between modules; imports inside functions count, those for type checkers do not
    docs       at most 120 columns in Markdown
    words      none of BANNED in code, docs and recipes; this file is exempt
    commits    subjects of at most 72 characters, since the commit that introduced this rule

Print each violation with its place, then one line for each rule. Exit 1 if any rule is broken.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES, FUNCTION_LINES, DOC_COLUMNS, SUBJECT_CHARACTERS = 400, 60, 120, 72
CODE = (".py", ".c", ".h", ".js")
PROSE = (*CODE, ".md", ".toml", ".html", ".css")
# Words that make data and components people, or that are not plain English.
BANNED = re.compile(r"\b(whoever|whom|nobody|everybody|hears|is told|are told|so many)\b", re.IGNORECASE)
# The parent of the first commit that follows the rule: earlier subjects stay as they are.
SUBJECTS_SINCE = "afb3936"


class NotCheckedError(Exception):
    """A rule cannot be checked here; the message states why."""


def tracked_files() -> list[Path]:
    """Return the files that git tracks, in order."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).exists()]


def long_files(files: list[Path]) -> Iterator[str]:
    """Yield source files with too many lines."""
    for path in files:
        if path.suffix in CODE and (lines := len(path.read_text().splitlines())) > FILE_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines"


def long_functions(files: list[Path]) -> Iterator[str]:
    """Yield Python functions with too many lines."""
    for path in files:
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


def repeated_classes(files: list[Path]) -> Iterator[str]:
    """Yield public top-level classes of the package whose name another module has defined."""
    first: dict[str, str] = {}
    for path in files:
        if path.suffix != ".py" or not path.is_relative_to(ROOT / "src"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                if (other := first.setdefault(node.name, place)) != place:
                    yield f"{place}: class {node.name} is also defined at {other}"


def import_cycles(_: list[Path]) -> Iterator[str]:
    """Yield cycles of imports. Each is cut at its last import before the next one is searched."""
    graph = grimp.build_graph("allyouneed", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]
            yield " -> ".join(cycle)
            imports[cycle[0]].discard(cycle[1])
        else:
            return


def wide_docs(files: list[Path]) -> Iterator[str]:
    """Yield lines of Markdown with too many columns."""
    for path in files:
        if path.suffix != ".md":
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > DOC_COLUMNS:
                yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"


def banned_words(files: list[Path]) -> Iterator[str]:
    """Yield lines with a banned word."""
    for path in files:
        if path.suffix not in PROSE or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if found := BANNED.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r}"


def long_subjects(_: list[Path]) -> Iterator[str]:
    """Yield commit subjects with too many characters; raise NotCheckedError if the history is missing."""
    log = ["git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"]
    found = subprocess.run(log, cwd=ROOT, check=False, capture_output=True, text=True)
    if found.returncode:
        raise NotCheckedError(found.stderr.strip().splitlines()[0] if found.stderr.strip() else "git log failed")
    for line in found.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_CHARACTERS:
            yield f"{commit}: {len(subject)} characters: {subject}"


RULES = {
    f"files of at most {FILE_LINES} lines": long_files,
    f"functions of at most {FUNCTION_LINES} lines": long_functions,
    "one class name means one thing": repeated_classes,
    "no import cycle": import_cycles,
    f"docs of at most {DOC_COLUMNS} columns": wide_docs,
    "no banned word": banned_words,
    f"commit subjects of at most {SUBJECT_CHARACTERS} characters": long_subjects,
}


def main() -> int:
    """Print what breaks each rule; return 1 if anything does."""
    files, broken = tracked_files(), False
    for rule, check in RULES.items():
        try:
            found = list(check(files))
        except NotCheckedError as reason:
            print(f"{rule}: not checked: {reason}")
            continue
        print(*found, sep="\n", end="\n" if found else "")
        print(f"{rule}: {len(found) or 'no'} violation{'' if len(found) == 1 else 's'}")
        broken |= bool(found)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
