"""The applications of the section `web`: each function builds one, whose limit is so many requests a minute.

All count a client by its address and keep their states in memory.
"""

TEXT = "Hello, world!"
