"""Models that share weights: a folder that is served under several names, or with several adapters, is loaded once.

N adapters take the memory of their base and N small adapters (inference/adapted.py). An adapter of other matrices than
those of attention and feed-forward layers is merged, and takes the memory of a model.
"""

import threading
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from allyouneed.adapter import Adapter
from allyouneed.errors import UserError
from allyouneed.folder import Bundle, load_folder
from allyouneed.inference.adapted import unshared, with_adapter
from allyouneed.pipeline import Pipeline, optimized
from allyouneed.storage import read_manifest

_LOADED: WeakValueDictionary[tuple[str, str, bool], Pipeline] = WeakValueDictionary()
_LOADING = threading.Lock()


def open_base(folder: str, device: str, int8: bool) -> Pipeline:
    """Load a model optimized for inference, or return the one that is in use, if its folder has not changed."""
    key = str(Path(folder).resolve()), device, int8
    with _LOADING:
        known = _LOADED.get(key)
        if known is not None and is_current(known):
            return known
        _LOADED[key] = loaded = optimized(load_folder(folder, device, compact=True), int8)
        return loaded


def adapted(base: Pipeline, adapter: Adapter, device: str, int8: bool) -> Pipeline:
    """Return a model with an adapter. It shares the weights of its base where that is possible."""
    if not shares_weights(base, adapter):
        return optimized(load_folder(base.path, device, adapter=adapter.path), int8)
    thin = {name: (a_RD, adapter.scale * b_NR) for name, (a_RD, b_NR) in adapter.thin.items()}
    return replace(base, model=with_adapter(base.model, thin), sha256=adapter.sha256)


def shares_weights(base: Pipeline, adapter: Adapter) -> bool:
    """Return whether a model with an adapter can share the weights of its base."""
    return not unshared(base.model, adapter.thin)


def is_current(bundle: Bundle) -> bool:
    """Return True if the folder of a model is unchanged. That of an unfinished run never is."""
    return bundle.step is None and has_files(bundle.path, bundle.files)


def has_files(folder: Path, files: object) -> bool:
    """Return True if the manifest of a folder lists these files."""
    try:
        return read_manifest(Path(folder)) == files
    except (UserError, OSError):
        return False
