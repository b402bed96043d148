"""Edge probing: what each layer of a trained model knows about labelled spans and pairs of spans."""
