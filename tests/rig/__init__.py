"""A rig that boots real systemd boxes: containers with their own PID 1, journal, D-Bus and network.

`images` builds what a box starts from (cached layers), `box` boots one and gives the tests a handle on it,
`holder` owns everything that must disappear when a box, or the process that asked for it, ends.
"""
