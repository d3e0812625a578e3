"""A dense transformer, in nanochat's shape."""

from model.families.dense import build as build
