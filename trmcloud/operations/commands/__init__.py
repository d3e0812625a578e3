"""Commands of the user's own: planned and run like a recipe, tried here for a minute before they
cost anything, explained when they fail.
"""
