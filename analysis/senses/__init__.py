"""The vectors of one word in its contexts: how well each layer separates its senses."""
