"""The commands that look inside a trained model."""
