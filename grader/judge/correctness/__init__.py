"""Are the outputs right? Every bound an output must meet."""
