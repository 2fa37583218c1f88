"""Copies of many arrays, of files, over several devices, and in the background."""
