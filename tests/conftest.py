"""Here so that pytest puts this directory on the path: `rig`, `fakes` and the helpers beside them."""
