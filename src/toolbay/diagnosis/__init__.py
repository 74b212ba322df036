"""Why a server does not work: what is found out about it, what that means, and the mend. Nothing is ever changed.

Probes gather facts; what they mean is decided by pure functions, whose verdict shows the lines that it was read from. A verdict
is for people: nothing else in this project decides by it.
"""
