"""Whisper D-SGD, arXiv:2501.14644v1: the first version of CorN-DSGD."""
