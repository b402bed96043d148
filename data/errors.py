"""The one error of this floor: a user's text, table or vocabulary is not what it should be."""


class DataError(ValueError):
    """One line for the user: where (file:line), what is wrong with the value got, what was wanted, how to mend it."""
