"""The one exception a caller of `torchtagi.experiments.data` has to know about."""


class DataError(RuntimeError):
    """Data are missing, cannot be fetched, or are not what their name promises.

    The message names the file and, where a person can help, says where it comes from and where to put it.
    """
