"""Whether a machine can do what is asked of it: ``doctor`` before any money is at stake, and
``smoke``, which rents the cheapest pod to see its kill layers work.
"""
