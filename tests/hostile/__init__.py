"""Hostile contents of a tree at every door that looks at one, under a watch.

    python -m tests.hostile --from 0 --trees 5000 --minutes 20 --state build/hostile.json
    python -m tests.hostile --only 1234 [--door try]    one tree again, with its record kept
    python -m tests.hostile --known --code DIR          the holes of commit 0464cda3, in a checkout

``contents`` and ``checkpoints`` write a tree and a run of the user's home, drawn by the tree's
number; ``doors`` says what is typed; ``watch`` runs it under strace; ``judge`` finds what had no
reason. A piece ends after ``--minutes``, and the next one goes on from ``--state``; a state is for
one commit of the checkout that is judged (``--code``, by its own ``.venv``).

A finding names its tree. ``--only`` writes that tree again, takes it through its two doors, and
keeps stdout, stderr, strace's record and the tree below ``build/hostile-NUMBER``.
"""
