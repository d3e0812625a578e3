"""What trmcloud does, behind every door alike: each operation takes a typed request and the ports
of a home, and returns a view. The rooms stand in layers: see ``pyproject.toml``.
"""
