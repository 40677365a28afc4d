"""The applications of the section `web`: each function builds one with a limit of `a_minute` requests a minute.

All count a client by its address and keep their states in memory.
"""

TEXT = "Hello, world!"
