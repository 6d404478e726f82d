"""The shared memory block, and the argument sets laid out in it."""
