"""Tokenizers in the folders of transformers: read, and written so that transformers loads them again."""
