"""Data sets in the files of their publishers, beneath the folder that CONTEXTURE_DATA names."""
