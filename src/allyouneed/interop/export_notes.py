"""What a model folder has and another program has no place for: said, not dropped in silence."""

from allyouneed.folder import Bundle


def shortlist_note(bundle: Bundle, why: str) -> list[str]:
    """The line for a shortlist that is not exported, if there is one."""
    return [] if bundle.shortlist is None else [f"the shortlist is left out: {why}"]
