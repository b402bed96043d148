"""Fuzzing: damaged and odd inputs for every parser and the command line (`make fuzz MINUTES=30`)."""
