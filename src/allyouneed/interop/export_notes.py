"""Notes on parts of a model folder that an export leaves out."""

from allyouneed.folder import Bundle


def shortlist_note(bundle: Bundle, why: str) -> list[str]:
    """Return the note that the shortlist is not exported, if there is one."""
    return [] if bundle.shortlist is None else [f"the shortlist is left out: {why}"]


def chat_note(bundle: Bundle) -> list[str]:
    """Return the note that the chat template is not exported, if there is one."""
    return [] if bundle.codec.chat is None else ["the chat template is left out: control tokens get other names"]
