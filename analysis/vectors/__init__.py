"""Files of vectors, with the words or tokens that they are of."""
