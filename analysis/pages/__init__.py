"""Pages that hold their data, styles and scripts, and load nothing."""
