"""What runs inside the units: the gate before a router, the watcher after each start, the recorder of ends.

They run as root beside the engine, in its environment; `__main__` drops that before anything else is
imported. Every line they print begins with "pd-units:", which the diagnosis never reads.
"""
