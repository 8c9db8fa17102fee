"""Every error that the store raises on purpose.

Rules of this module: one small hierarchy under ``StoreError``. A message names the thing and what to do about it.
A malformed record is a plain ``ValueError``: it is the caller's fault and no state of the store.
"""


class StoreError(Exception):
    """Base of all errors of ``dragoman.store``."""


class StoreUnavailable(StoreError):
    """The store cannot be opened, read or written now. The same request may succeed later; nothing was written."""


class DataWouldBeLost(StoreError):
    """The older schema that was asked for has no place for data that the store holds. Nothing was changed."""


class EpisodeNotFound(StoreError):
    """No episode has that id."""


class EpisodeEnded(StoreError):
    """The episode has already ended, and in another way than the one asked for."""


class GroupMismatch(StoreError):
    """An episode asks for a group that was opened with another size or deadline, is complete or past its deadline."""


class LeaseLost(StoreError):
    """A group is no longer, or was never, leased to this holder: another one has it or has done with it."""


class CallNotFound(StoreError):
    """No call has that id."""


class ArtefactNotFound(StoreError):
    """The episode has no artefact of that name."""
