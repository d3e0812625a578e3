"""Answers to requests over HTTP: what draws them, what is asked and said, and the pages."""
