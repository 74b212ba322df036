"""The configuration as values: one server, the tools section, the agent section.

Keys are camelCase in files (snake_case is read as well); attributes are snake_case. What a field means, its unit, its
default and why stands beneath it, and is what editors show.
"""
