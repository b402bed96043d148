"""What differs between model families in how they read text: one object each."""
