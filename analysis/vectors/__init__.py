"""Files of vectors, with the words or tokens that they belong to."""
