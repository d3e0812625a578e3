"""A door for agents: a Model Context Protocol server over ``trmcloud.api``, under one grant.

``tools`` is the table of tools, ``arguments`` their JSON Schemas and the strict check of what a
client sends, ``answers`` what is sent back: bounded, masked, with the grant's money. ``server`` is
the SDK's part, ``launcher`` the process that stays with a run after its client has left.
"""
