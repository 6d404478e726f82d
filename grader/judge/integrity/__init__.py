"""Were the calls made as asked? Evidence about when inputs are read and outputs written."""
