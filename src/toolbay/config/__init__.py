"""Configuration: found, read, checked, and edited without losing a comment."""
