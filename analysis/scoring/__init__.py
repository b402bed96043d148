"""How well a model predicts each token of a text, and what it would have guessed: one scorer a family, and a page."""
