"""A dense transformer, in the shapes of GPT-2 and its successors."""

from model.families.dense import build as build
