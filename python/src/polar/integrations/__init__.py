"""Bridges from ended sessions to what trainers take.

Each module lays the rows of `polar.rows` out for one trainer, and says in its own
documentation which hook of the trainer it goes into. The trainer, NumPy and PyTorch are
imported when a function needs them, so that this package needs none of them.

What they have in common: a rollout counts once, however many rows it has; sessions without
a reward take no part; a missing logprob is an error, or a row less that is counted, never
0.0; and 0.0 stands where the mask is 0, as those formats have it.
"""
