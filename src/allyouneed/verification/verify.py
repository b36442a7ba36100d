"""Check that a folder is intact: `allyouneed verify`.

    model folder   the manifest lists all files; every sha256; names, shapes and types; only finite numbers; ids are in
                   range; the model reproduces the scores that its card states
    export         the manifest and every sha256: another program runs it
    adapter        the manifest and every sha256; its base is named; only finite numbers
    run folder     the same for its model; the recipe; the log; every checkpoint, and that it fits the model; prepared
                   data; leftovers of a killed writer

Nothing in the folder is changed.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from allyouneed.errors import FolderError
from allyouneed.folder import SHORTLIST, kind_of
from allyouneed.storage import MANIFEST, open_folder, read_manifest
from allyouneed.verification.finding import Finding
from allyouneed.verification.model_folder import EXPORTED, check_model
from allyouneed.verification.run_folder import check_run, is_run_folder


def verify_folder(path: Path, with_scores: bool = True) -> Iterator[Finding]:
    """Yield the findings about a model folder, a run folder, an export or an adapter, check by check."""
    if is_run_folder(path):
        yield from check_run(path, with_scores)
    else:
        yield from check_model(path, with_scores)


def remedy(path: Path, failed: set[str]) -> str:
    """Return what to do about a folder in which these checks failed; empty if there is no general advice."""
    if failed.isdisjoint({"manifest", "sha256"}) or not path.is_dir():
        return ""
    run = path if is_run_folder(path) else path.parent if is_run_folder(path.parent) and path.name == "model" else None
    with suppress(FolderError):
        model = path if run is None else run / "model"
        if SHORTLIST in read_manifest(model):
            open_folder(model, without=[SHORTLIST]).check()  # everything else is intact
            return f"; `allyouneed shortlist {path}` makes its shortlist again"
    if run is not None:
        # Without a manifest the origin of the files is unknown, and `train` does not replace them.
        first = "" if (run / "model" / MANIFEST).is_file() else f"remove {run / 'model'}, then "
        recipe = run / "recipe.toml" if (run / "recipe.toml").is_file() else "RECIPE"
        return f"; {first}`allyouneed train {recipe} --out {run}` makes its model folder again"
    if kind_of(path) in EXPORTED:
        return "; export it again, or copy the whole folder again"
    return "; copy the whole folder again from its origin"
