"""How probable a model finds each token of a text, and what it would have guessed; a page of it."""
