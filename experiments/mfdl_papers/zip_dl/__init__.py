"""Zip-DL: noise that cancels among the messages of a node."""
