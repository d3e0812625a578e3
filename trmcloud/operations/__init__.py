"""The operations of trmcloud, shared by all doors. Each takes a typed request and the ports of a
home, and returns a view. The packages are layered: see the import contract in ``pyproject.toml``.
"""
