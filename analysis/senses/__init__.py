"""The vectors of one word in its contexts: how they part by sense, layer by layer."""
