"""The user's files on their way to a machine: what of a working tree is sent, what never is, its
packages, the data, and the archive that they become.
"""
